"""What a request asks for, in no dialect: turns of parts, tools, and the settings the client gave.

Every value knows the field of the client's request it came from (``at``), so that whoever cannot honour it can refuse it by
its name. Knows no dialect and no engine. Made by the dialects' ``parse``, read by their ``ask`` and by ``textprompt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reef.inference.dialects.fields import refuse


@dataclass(frozen=True, slots=True)
class Text:
    """Words; ``refusal`` where an assistant declined."""

    text: str
    at: str = ""
    refusal: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: its address, or else base64 ``data`` of ``media_type``. ``detail`` as OpenAI names it."""

    url: str = ""
    media_type: str = ""
    data: str = ""
    detail: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A document that is no plain text: its address, or else base64 ``data`` of ``media_type``."""

    name: str = ""
    url: str = ""
    media_type: str = ""
    data: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """An assistant's reasoning. ``seal`` is what the provider of dialect ``sealed_by`` signed or encrypted it with."""

    text: str
    seal: str = ""
    sealed_by: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of the history; ``name`` is a tool's wire name, ``arguments`` their JSON text as it was sent."""

    call_id: str
    name: str
    arguments: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Other:
    """A part of a kind that only its own dialect can say."""

    kind: str
    at: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What the call ``call_id`` gave back."""

    call_id: str
    parts: tuple[Text | Image | File | Other, ...]
    is_error: bool = False
    at: str = ""


Part = Text | Image | File | Thought | ToolCall | Result | Other


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. A tool's turn holds exactly one Result; calls and thoughts stand in an assistant's only."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[Part, ...]
    at: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the client can run. ``custom`` tools take one free text, which travels as their argument ``input``.

    ``wire`` is the name everybody but the client's own dialect knows it by: unique, without namespace, short enough.
    """

    name: str
    wire: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool | None = None
    namespace: str = ""
    custom: bool = False
    at: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools may or must be used; ``name`` is the wire name of the ``one``."""

    kind: Literal["auto", "none", "required", "one"]
    name: str = ""
    at: str = "tool_choice"


@dataclass(frozen=True, slots=True)
class Format:
    """JSON instead of prose: any object (``json_object``), or one that fits ``schema`` (``json_schema``)."""

    kind: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    description: str = ""
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A value the client gave, and the field it gave it in."""

    value: Any
    at: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. ``settings`` holds only what was given and differs from the default; its names are our own.

    ``begun``: the last turn is the beginning of the answer, to be continued. ``unread`` are fields nobody here knows.
    ``template_options`` are for chat templates alone. ``show_reasoning``: the client wants to see thoughts.
    """

    turns: tuple[Turn, ...] = ()
    tools: tuple[Tool, ...] = ()
    choice: Choice | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    include_usage: bool = False
    show_reasoning: bool = True
    begun: bool = False
    unread: tuple[str, ...] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting, ``default`` where the client gave none."""
        setting = self.settings.get(name)
        return default if setting is None else setting.value

    def tool(self, wire: str) -> Tool | None:
        """The offered tool of that wire name."""
        return next((tool for tool in self.tools if tool.wire == wire), None)


def words(parts: tuple[Part, ...], who: str) -> str:
    """The text of parts that may hold nothing else, joined by newlines; ``who`` reads text only, and is named when not."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            found.append(part.text)
        else:
            kind = part.kind if isinstance(part, Other) else type(part).__name__.lower()
            refuse(part.at, f"{who} reads text only, not {kind!r}")
    return "\n".join(found)


def named(turn: Turn) -> tuple[Part, ...]:
    """A turn's parts where no field can say who of several speaks, so that words must."""
    return (Text(f"[{turn.name}]", turn.at), *turn.parts) if turn.name else turn.parts


def marked(result: Result) -> tuple[Text | Image | File | Other, ...]:
    """A result's parts where no flag can say that the tool failed, so that words must."""
    return (Text("[error]", result.at), *result.parts) if result.is_error else result.parts
