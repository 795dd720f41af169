"""Reef's own small agent: a loop of model calls and four tools, started as ``python -m reef.harness.minimal -p "task"``.

Everything it is told comes from its configuration folder (rules/, skills/, commands/, settings.json) and the environment
that ``reef-minimal`` sets. It runs what the model asks for with the rights of whoever started it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reef import __version__
from reef.harness.tree import front_matter

SHOWN_CHARS = 30_000
"""What a tool shows the model at most; more is cut in the middle, visibly."""
_TRIES, _TIMEOUT_S = 4, 600.0
_DEFAULTS = {
    "max_steps": 40,
    "bash_timeout_s": 120.0,
    "max_answer_tokens": None,
    "temperature": None,
    "system": "",
    "tools": ["read", "write", "edit", "bash"],
}
_SYSTEM = (
    "You are a coding agent in a terminal. Work on the user's task with the tools you have, one step at a time, until it is "
    "done; then answer in a few words without calling a tool."
)

Tool = Callable[[Mapping[str, Any]], str]


class Failed(Exception):
    """The run cannot go on; said on stderr, exit code 1."""


class Agent:
    """One session. ``folder`` holds the harness; the transcript is a JSON line per message below ``sessions/``."""

    def __init__(self, folder: Path, environ: Mapping[str, str], session: str) -> None:
        self.folder = folder
        self.settings = _DEFAULTS | _read_json(folder / "settings.json")
        self.skills = {path.parent.name: path for path in sorted(folder.glob("skills/*/SKILL.md"))}
        self.transcript = folder / "sessions" / f"{session}.jsonl"
        try:
            self.url, self.model = environ["REEF_AGENT_URL"], environ["REEF_AGENT_MODEL"]
        except KeyError as missing:
            raise Failed(f"{missing.args[0]} is not set: start it with reef-minimal") from None
        named = {"x-reef-scenario": "REEF_SCENARIO", "x-reef-release-id": "REEF_RELEASE"}
        self.headers = {"x-reef-session": session, "user-agent": f"reef-minimal/{__version__}"}
        self.headers |= {header: environ[name] for header, name in named.items() if environ.get(name)}
        if token := environ.get("REEF_AGENT_TOKEN"):
            self.headers["x-reef-token"] = token
        tools: dict[str, Tool] = {"read": self.read, "write": self.write, "edit": self.edit, "bash": self.bash}
        if odd := [name for name in self.settings["tools"] if name not in tools]:
            raise Failed(f"settings.json: tools: there is no {odd[0]!r}; there are {', '.join(tools)}")
        self.tools = {name: tool for name, tool in tools.items() if name in self.settings["tools"]}
        if self.skills:
            self.tools["skill"] = self.skill
        self.messages: list[dict[str, Any]] = []

    def run(self, prompt: str) -> str:
        """Work on ``prompt`` until the model answers without a tool; raises Failed after too many steps."""
        if not self.messages:
            self.keep({"role": "system", "content": self.system()})
        self.keep({"role": "user", "content": self.expanded(prompt)})
        for _ in range(int(self.settings["max_steps"])):
            message = self.ask()
            self.keep(message)
            calls = message.get("tool_calls") or []
            if not calls:
                return str(message.get("content") or "")
            for call in calls:
                self.keep({"role": "tool", "tool_call_id": call.get("id", ""), "content": self.use(call)})
        raise Failed(f"the task was not done after {self.settings['max_steps']} steps")

    def system(self) -> str:
        """The system prompt: what it is, the rules, the skills by name, where it works."""
        parts = [self.settings["system"] or _SYSTEM]
        parts += [path.read_text(encoding="utf-8").strip() for path in sorted(self.folder.glob("rules/*.md"))]
        if self.skills:
            rows = [f"- {name}: {_description(path)}" for name, path in self.skills.items()]
            parts.append("Skills; read one with the skill tool before work that it is meant for:\n" + "\n".join(rows))
        parts.append(f"The working directory is {Path.cwd()}.")
        return "\n\n".join(parts)

    def expanded(self, prompt: str) -> str:
        """``/name words`` becomes the text of that command."""
        name, _, words = prompt[1:].partition(" ")
        path = self.folder / "commands" / f"{name}.md"
        if not prompt.startswith("/") or "/" in name or not path.is_file():
            return prompt
        return path.read_text(encoding="utf-8").replace("$ARGUMENTS", words)

    def keep(self, message: dict[str, Any]) -> None:
        """Add a message to the conversation and the transcript."""
        self.messages.append(message)
        self.transcript.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.transcript.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.time(), **message}) + "\n")

    def resume(self) -> None:
        """Take up the messages of the transcript."""
        lines = self.transcript.read_text(encoding="utf-8").splitlines() if self.transcript.exists() else []
        self.messages = [{key: value for key, value in json.loads(line).items() if key != "at"} for line in lines]

    def ask(self) -> dict[str, Any]:
        """One model call; what may pass is tried again, honouring Retry-After."""
        import httpx

        body: dict[str, Any] = {"model": self.model, "messages": self.messages}
        if self.tools:  # an empty list is an error of some providers
            body["tools"] = [_schema(name) for name in self.tools]
        given = {"max_tokens": self.settings["max_answer_tokens"], "temperature": self.settings["temperature"]}
        body |= {key: value for key, value in given.items() if value is not None}
        said, wait_s = "", 1.0
        with httpx.Client(headers=self.headers, timeout=_TIMEOUT_S, trust_env=False) as http:
            for attempt in range(_TRIES):
                if attempt:
                    time.sleep(wait_s)
                try:
                    answer = http.post(f"{self.url}/v1/chat/completions", json=body)
                except httpx.TransportError as error:
                    said, wait_s = f"no answer from {self.url}: {error}", 2.0**attempt
                    continue
                if answer.is_success:
                    return _message(answer.content)
                said, wait_s = f"HTTP {answer.status_code}: {answer.text[:500]}", _wait(answer.headers, attempt)
                if answer.status_code not in (408, 409, 429) and answer.status_code < 500:
                    break
        raise Failed(f"the model call failed: {said}")

    # -- tools

    def use(self, call: Mapping[str, Any]) -> str:
        """What one tool call shows; an error is shown too, for the model to deal with."""
        function = call.get("function") or {}
        tool = self.tools.get(str(function.get("name")))
        if tool is None:
            return f"error: there is no tool {function.get('name')!r}; there are {', '.join(self.tools)}"
        try:
            arguments = json.loads(function.get("arguments") or "{}")
            return _cut(tool(arguments)) or "(no output)"
        except json.JSONDecodeError as error:
            return f"error: the arguments are not JSON: {error}"
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return f"error: wrong arguments: {type(error).__name__}: {error}"
        except OSError as error:
            return f"error: {error}"

    def read(self, arguments: Mapping[str, Any]) -> str:
        """A file's text."""
        return Path(arguments["path"]).read_text(encoding="utf-8", errors="replace")

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Create or replace a file."""
        path, text = Path(arguments["path"]), str(arguments["content"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return f"wrote {len(text)} characters to {path}"

    def edit(self, arguments: Mapping[str, Any]) -> str:
        """Replace a text that is in the file exactly once."""
        path, old = Path(arguments["path"]), str(arguments["old"])
        text = path.read_text(encoding="utf-8")
        if not old or text.count(old) != 1:
            raise ValueError(f"old is {text.count(old) if old else 0} times in {path}, and must be there once")
        path.write_text(text.replace(old, str(arguments["new"])), encoding="utf-8")
        return f"edited {path}"

    def bash(self, arguments: Mapping[str, Any]) -> str:
        """A shell command; all that it started ends with it."""
        limit_s = float(self.settings["bash_timeout_s"])
        child = subprocess.Popen(
            ["bash", "-c", str(arguments["command"])], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "REEF_AGENT_TOKEN"},
        )  # fmt: skip
        late = False
        try:
            raw, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        if late:
            raw, _ = child.communicate()
        text = raw.decode("utf-8", "replace")
        if late:
            return f"{text}\nerror: stopped after {limit_s:g} s"
        return text if child.returncode == 0 else f"{text}\nexit code {child.returncode}"

    def skill(self, arguments: Mapping[str, Any]) -> str:
        """A skill's text."""
        return self.skills[arguments["name"]].read_text(encoding="utf-8")


_TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    "read": ("Read a file.", {"path": "the file"}),
    "write": ("Create a file, or replace all of it.", {"path": "the file", "content": "its whole text"}),
    "edit": (
        "Replace a text in a file that is there exactly once.",
        {"path": "the file", "old": "the text to replace", "new": "what it becomes"},
    ),
    "bash": ("Run a shell command and see its output.", {"command": "the command"}),
    "skill": ("Read a skill.", {"name": "its name"}),
}


def _schema(name: str) -> dict[str, Any]:
    said, arguments = _TOOLS[name]
    fields = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": said, "parameters": parameters}}


def _message(raw: bytes) -> dict[str, Any]:
    try:
        message = json.loads(raw)["choices"][0]["message"]
        kept = {key: message[key] for key in ("role", "content", "tool_calls") if message.get(key) is not None}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        raise Failed(f"the answer holds no message: {raw[:200]!r}") from None
    return {"role": "assistant", "content": None, **kept}


def _wait(headers: Mapping[str, str], attempt: int) -> float:
    said = headers.get("retry-after", "")
    return min(float(said), 60.0) if said.isdecimal() else 2.0**attempt


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _description(path: Path) -> str:
    return " ".join(str(front_matter(path.read_text(encoding="utf-8")).get("description", "")).split())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Failed(f"{path} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def main() -> int:
    """Run one prompt, or, without -p, one after the other from standard input."""
    parser = argparse.ArgumentParser(prog="reef-minimal", description="Reef's own small coding agent.")
    parser.add_argument("prompt", nargs="*", help="the first prompt of a conversation")
    parser.add_argument(
        "-p", "--print", dest="once", metavar="PROMPT", help="work on one prompt, print the answer and leave"
    )
    parser.add_argument("--session-id", help="the name of the session; one with this name goes on")
    parser.add_argument("-c", "--continue", dest="goes_on", action="store_true", help="go on with the newest session")
    parser.add_argument("--version", action="version", version=f"reef-minimal {__version__}")
    words = parser.parse_args()
    folder = Path(os.environ.get("REEF_AGENT_DIR", "."))
    newest = max(folder.glob("sessions/*.jsonl"), key=lambda path: path.stat().st_mtime, default=None)
    session = words.session_id or os.environ.get("REEF_SESSION") or str(uuid.uuid4())
    try:
        if words.goes_on and newest is None:
            raise Failed("there is no session to go on with")
        agent = Agent(folder, os.environ, session)
        if words.goes_on and newest is not None:
            agent.transcript = newest
        agent.resume()
        first = words.once if words.once is not None else " ".join(words.prompt)
        if first:
            print(agent.run(first), flush=True)
        if words.once is None:
            for line in sys.stdin:
                if line.strip():
                    print(agent.run(line.strip()), flush=True)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
