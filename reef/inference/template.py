"""A model folder's chat template and tokenizer: TextPrompt to token ids, ids to text. Needs jinja2 and tokenizers, no torch.

What a template cannot say (tools, late system messages, neighbours of one role) is found out once, when it is loaded,
and put into words it can say. Knows nothing of engines. Called by the engine backend.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reef.errors import BadConfig, BadRequest
from reef.inference.textprompt import TextPrompt
from reef.inference.toolprompt import spell_out_tools

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class _Habits:
    """What a template can do, measured with probe conversations."""

    tools: bool
    system: bool
    late_system: bool
    neighbours: bool
    arguments_as_text: bool


class ChatTemplate:
    """Renders and tokenizes for one model folder; stateless after loading, so safe to share."""

    def __init__(self, folder: Path) -> None:
        try:
            import jinja2  # noqa: F401
            from tokenizers import Tokenizer
        except ImportError as error:
            raise BadConfig(
                f"the embedded engine needs {error.name}", hint="install it with: pip install 'reefd[torch]'"
            ) from error
        if not (folder / "tokenizer.json").is_file():
            raise BadConfig(
                f"{folder} has no tokenizer.json", hint="give a Hugging Face model folder", field="model_path"
            )
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        facts = _read_json(folder / "tokenizer_config.json")
        self._special = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in facts.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }
        source = _find_template(folder, facts)
        self._template = _compile(source)
        self.context_tokens = _context_tokens(folder)
        self.stop_ids = self._find_stop_ids(folder)
        self._habits = self._probe(source)

    def render(self, prompt: TextPrompt) -> str:
        """The whole prompt text; BadRequest when the template refuses the conversation."""
        from jinja2 import TemplateError

        messages, tools = [dict(message) for message in prompt.messages], list(prompt.tools)
        if not self._habits.tools:
            messages, tools = spell_out_tools(messages, tools), []
        elif self._habits.arguments_as_text:
            messages = [_arguments_as_text(message) for message in messages]
        try:
            text = self._template.render(
                messages=_fit(messages, self._habits),
                tools=tools or None,
                documents=None,
                add_generation_prompt=True,
                **{**self._special, **prompt.template_options},
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise BadRequest(f"messages: the model's chat template refuses them: {error}", field="messages") from error
        return text + prompt.prefill

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered prompt."""
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:  # half a surrogate pair has no UTF-8 form
            raise BadRequest("messages: hold half a surrogate pair, which is not text", field="messages") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of generated ids, special tokens left out."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def count_reasoning(self, token_ids: Sequence[int]) -> int:
        """How many of the ids come before the end of the reasoning, its closing tag included; all when it never ends."""
        low, high = 0, len(token_ids)
        while low < high:
            middle = (low + high) // 2
            if "</think>" in self._tokenizer.decode(list(token_ids[:middle]), skip_special_tokens=False):
                high = middle
            else:
                low = middle + 1
        return low

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; a part of a character stays a part."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if all(char in _BYTE_OF for char in token) and "\u2581" not in token:
            return bytes(_BYTE_OF[char] for char in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode("utf-8")

    def _find_stop_ids(self, folder: Path) -> tuple[int, ...]:
        """Ids that end a turn: the tokenizer's and the generation settings' end tokens."""
        found: list[Any] = []
        for name in ("generation_config.json", "config.json"):
            value = _read_json(folder / name).get("eos_token_id")
            found.extend(value if isinstance(value, list) else [value])
        end = self._special.get("eos_token")
        found.append(self._tokenizer.token_to_id(end) if isinstance(end, str) else None)
        return tuple(dict.fromkeys(token_id for token_id in found if isinstance(token_id, int)))

    def _probe(self, source: str) -> _Habits:
        """Ask the template, with small conversations, what it can say."""
        user, other = {"role": "user", "content": "ask"}, {"role": "user", "content": "PROBE"}
        said = {"role": "assistant", "content": "say"}
        system = {"role": "system", "content": "PROBE"}
        call = {"function": {"name": "look", "arguments": {"key": "PROBE"}}, "id": "call00000", "type": "function"}
        called: list[dict[str, Any]] = [user, {**said, "tool_calls": [call]}]
        as_object = self._try(called, [])
        as_text = self._try([_arguments_as_text(message) for message in called], [])
        wants_text = "{'key'" in as_object or ("PROBE" not in as_object and "PROBE" in as_text)
        if '\\"key\\"' in (as_text if wants_text else as_object):
            raise BadConfig("the model's chat template quotes tool arguments twice", hint="use another template")
        tool = {"type": "function", "function": {"name": "PROBE", "description": "", "parameters": {"type": "object"}}}
        return _Habits(
            tools="PROBE" in self._try([user], [tool]) and "PROBE" in (as_text if wants_text else as_object),
            system="PROBE" in self._try([system, user], []),
            late_system="PROBE" in self._try([user, said, system, user], []),
            neighbours="PROBE" in self._try([user, other], []),
            arguments_as_text=wants_text,
        )

    def _try(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """A probe's rendering, empty when the template refuses it."""
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=messages, tools=tools or None, documents=None, add_generation_prompt=True, **self._special
            )
        except (TemplateError, TypeError, ValueError):
            return ""


def _fit(messages: list[dict[str, Any]], habits: _Habits) -> list[dict[str, Any]]:
    """Messages in the shape the template accepts: same words, same order."""
    fitted: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message["role"] == "system" and not (habits.system if index == 0 else habits.late_system):
            message = {**message, "role": "user"}
        before = fitted[-1] if fitted else None
        joins = before is not None and before["role"] == message["role"] and "tool_calls" not in before
        if before is not None and joins and message["role"] in ("user", "assistant") and not habits.neighbours:
            text = "\n\n".join(part for part in (before["content"], message["content"]) if part)
            fitted[-1] = {**before, **message, "content": text}
        else:
            fitted.append(message)
    return fitted


def _arguments_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its calls' arguments as JSON text."""
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _compile(source: str) -> Template:
    """The template in a sandbox, with the helpers model folders expect."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from reef.inference.jinja_ext import GenerationTag

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise BadConfig(f"the model's chat template cannot be read: {error}", field="model_path") from error


def _find_template(folder: Path, facts: Mapping[str, Any]) -> str:
    """The folder's chat template, from its own file or from the tokenizer's settings."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    found = facts.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        raise BadConfig(
            f"{folder} has no chat template",
            hint="use an instruction-tuned model, or put a chat_template.jinja into the folder",
            field="model_path",
        )
    return found


def _context_tokens(folder: Path) -> int | None:
    """The longest sequence the model was made for, None when its settings do not say."""
    facts = _read_json(folder / "config.json")
    for holder in (facts, facts.get("text_config")):
        for key in ("max_position_embeddings", "n_positions"):
            if isinstance(holder, dict) and isinstance(holder.get(key), int):
                return int(holder[key])
    return None


def _read_json(path: Path) -> dict[str, Any]:
    """A settings file, empty when the folder has none."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadConfig(f"{path.name} is not valid JSON: {error}", field="model_path") from error
    return found if isinstance(found, dict) else {}


def _byte_table() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for: printable ones themselves, the rest from 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return table


_BYTE_OF = _byte_table()
