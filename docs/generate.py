"""Writes the pages that are made from the code: config.md, cli.md, http.md and llms.txt.

A test compares each file with what is made here: python docs/generate.py
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reef.config import SECTIONS, Knob, env_name
from reef.recipes import recipe_class_for, recipe_kinds

DOCS = Path(__file__).parent
CONFIG = """# Configuration

<!-- made by docs/generate.py from reef/config.py; a test keeps them equal -->

A YAML file with two sections, `reef:` and `training:`, given with `reef up -c serve.yaml`. Each key can also be set by
its environment variable (where the table names one) or as a flag (`--reef.port 8901`, `--training.seed 7`). A flag goes
before the file, the file before the environment, the environment before the default. `${section.key}` and
`${ENVIRONMENT_VARIABLE}` in a value are filled in. An unknown key, a key given twice, a wrong type or a value out of
bounds stops the start with its line and the nearest name. `reef config show --origin`, with the same `-c`, prints
what `reef up` would use and where that comes from; what nobody set and it picks by itself has the origin `reef up`.
"""
CLI = """# Commands

<!-- made by docs/generate.py from the commands themselves; a test keeps them equal -->

What `reef COMMAND --help` says, on one page. `--json` prints one document with its `schema`; [operate](operate.md) has
the exit codes and the shape of an error.
`-s`, `--scenario` is needed only when there are several, and `--home` is the state directory (also `REEF_HOME`).
"""
SAID_ABOVE = {"--home", "--json"}
"""Options that mean the same everywhere: only their names are repeated."""


def _row(name: str, hint: object, item: dataclasses.Field[object], env: str | None) -> str:
    rule: Knob = item.metadata["reef"]
    kind = str(hint).replace("<class '", "").replace("'>", "").replace("pathlib.Path", "path").replace(" | None", "")
    kind = kind.replace("pathlib._local.Path", "path")
    default = "" if item.default is None or item.default == "" else f"`{item.default}`"
    choices = f" One of {', '.join(f'`{one}`' for one in rule.choices)}." if rule.choices else ""
    return f"| `{name}` | {kind} | {default} | {rule.help}.{choices} | {f'`{env}`' if env else ''} |"


def config() -> str:
    """Every key."""
    lines = [CONFIG]
    head = ["| key | type | default | what it does | environment |", "|---|---|---|---|---|"]
    for section, table in SECTIONS.items():
        hints = typing.get_type_hints(table)
        lines += [f"## {section}.*", "", (table.__doc__ or "").strip(), "", *head]
        for item in dataclasses.fields(table):
            lines.append(_row(f"{section}.{item.name}", hints[item.name], item, env_name(section, item.name)))
        lines.append("")
    lines += ["## Keys of the recipes", "", "They stand in the section `reef:` too, beside `recipe:`.", ""]
    for kind in recipe_kinds():
        cls = recipe_class_for(kind)
        hints = typing.get_type_hints(cls)
        lines += [f"### {kind}", "", f"{cls.summary}.", ""]
        if cls.knobs():
            lines += head
            lines += [
                _row(f"reef.{name}", hints[name], item, item.metadata["reef"].env) for name, item in cls.knobs().items()
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


# -- commands


def cli() -> str:
    """Every command, its words and its options."""
    from reef.cli.commands import SECTIONS as PARTS
    from reef.cli.commands import everything

    commands = dict(everything())
    lines = [CLI]
    for title, rows in PARTS.items():
        lines += [f"## {title}", ""]
        for top, _, _ in rows:
            for path in (one for one in commands if one == top or one.startswith(f"{top} ")):
                lines += _command(path, commands[path])
    return "\n".join(lines).rstrip() + "\n"


def _command(path: str, command: Any) -> Iterator[str]:
    group = hasattr(command, "list_commands")
    words = [_metavar(one) for one in command.params if one.param_type_name == "argument"]
    below = ["COMMAND"] if group else []
    yield from (f"### reef {path}", "", f"    reef {' '.join([path, *words, *below])} [OPTIONS]", "")
    yield from (_escaped(command.help or ""), "")
    rows = [row for one in command.params if not getattr(one, "hidden", False) for row in _parameter(one)]
    if rows:
        yield from ("| | |", "|---|---|", *rows, "")
    also = [f"`{one.opts[0]}`" for one in command.params if one.opts[0] in SAID_ABOVE]
    if also:
        yield from (f"Also {' and '.join(also)}.", "")
    examples = re.findall(r"^  (\S.*)$", command.epilog or "", flags=re.M)
    if examples:
        yield from (*(f"    {one}" for one in examples), "")


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = f"{name}..." if argument.nargs == -1 and not name.endswith("...") else name
    return name if argument.required else f"[{name}]"


def _parameter(one: Any) -> Iterator[str]:
    if one.opts[0] in SAID_ABOVE:
        return
    said = _escaped(" ".join((one.help or "").split()))
    if one.param_type_name == "argument":
        yield f"| `{_metavar(one)}` | {said} |"
        return
    kind = "" if one.is_flag else f" <{getattr(one.type_descriptor.annotation, '__name__', 'text').lower()}>"
    ordered = sorted([*one.opts, *one.secondary_opts], key=lambda name: (len(name) > 2, name))
    names = ", ".join(f"`{name}{kind}`" for name in ordered)
    shown = "" if one.is_flag or one.default in (None, "", ()) else f" Default: `{one.default}`."
    yield f"| {names} | {said}{shown} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# -- HTTP

HTTP = """# HTTP

<!-- made by docs/generate.py from GET /openapi.json; a test keeps them equal -->

What `GET /openapi.json` says, on one page. Every route but `/` and `/healthz` wants the daemon's token: as
`Authorization: Bearer`, as `x-api-key`, or as `x-reef-token` (the client's own `Authorization` then goes on to the
provider). An error of a `/reef/` route is `{"error": {"code", "message", "hint"}}`; one of a `/v1/` route has the shape
of the provider whose format it is. [Troubleshooting](troubleshooting.md) explains the codes. `?` marks a field that may
be absent.
"""
EVERYWHERE = {"401", "403"}


def http() -> str:
    """Every route, and the shapes that it takes and gives."""
    from reef.daemon.openapi import document

    api = document()
    lines = [HTTP]
    for path, operations in api["paths"].items():
        for method, one in operations.items():
            lines += _operation(method.upper(), path, one)
    lines += ["## Shapes", ""]
    for name, schema in api["components"]["schemas"].items():
        lines += [f"### {name}", "", *_shape(schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _operation(method: str, path: str, one: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {method} {path}", "", _cell(one["summary"]), "")
    given = one.get("parameters", [])
    if given:
        yield from ("| parameter | in | type | |", "|---|---|---|---|")
        for row in given:
            must = "required; " if row["required"] and row["in"] != "path" else ""
            yield f"| `{row['name']}` | {row['in']} | {_type(row['schema'])} | {must}{_cell(row.get('description', ''))} |"
        yield ""
    if "requestBody" in one:
        body = one["requestBody"]["content"]["application/json"]["schema"]
        yield from (f"Body: {_type(body)}", "")
    yield from ("| answer | | |", "|---|---|---|")
    for status, answer in one["responses"].items():
        if status in EVERYWHERE:
            continue
        shown = " ".join(_type(kind["schema"]) for kind in answer.get("content", {}).values() if kind.get("schema"))
        yield f"| {status} | {_cell(answer['description'])} | {shown} |"
    yield ""


def _shape(schema: Mapping[str, Any]) -> Iterator[str]:
    must = set(schema.get("required", ()))
    yield from ("| field | type | |", "|---|---|---|")
    for name, field in schema.get("properties", {}).items():
        yield f"| `{name}`{'' if name in must else ' ?'} | {_type(field)} | {_cell(field.get('description', ''))} |"


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words; objects by their fields."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema and schema.get("type") != "object":
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and schema.get("properties"):
        must = set(schema.get("required", ()))
        inner = (f"`{name}`{'' if name in must else '?'}: {_type(one)}" for name, one in schema["properties"].items())
        return f"{{{', '.join(inner)}}}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("{", "&#123;").replace("<", "&lt;")


# -- llms.txt

LLMS = """# Reef

> A local daemon between an agent and its model: it answers the calls (OpenAI and Anthropic formats), keeps each one,
> pairs it with what is reported about it, makes the next version of the model or of the agent's harness from that, and
> serves it. Command `reef`, package `reefd`, Python 3.11 or newer.

"""


def llms() -> str:
    """The pages in the order of the site, one line each: a title and the page's first sentence."""
    import yaml

    nav = yaml.safe_load((DOCS.parent / ".mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    lines = []
    for part in nav:
        for title, pages in part.items():
            lines += [f"## {title}", "", *(_line(name) for name in pages), ""]
    return LLMS + "\n".join(lines).rstrip() + "\n"


def _line(name: str) -> str:
    text = {"config.md": CONFIG, "cli.md": CLI, "http.md": HTTP}.get(name) or (DOCS / name).read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    title = re.search(r"^# (.+)$", text, flags=re.M)
    first = next(
        one for one in text.split("\n\n")[1:] if one.strip() and not one.startswith(("#", "!", "    ", "|", "`"))
    )
    sentence = re.split(r"(?<=[.:])\s", " ".join(first.split()), maxsplit=1)[0].rstrip(".:")
    assert title is not None, name
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", sentence)
    return f"- [{title[1]}]({name}): {plain}"


PAGES: Mapping[str, Callable[[], str]] = {"config.md": config, "cli.md": cli, "http.md": http, "llms.txt": llms}

if __name__ == "__main__":
    for file, made in PAGES.items():
        (DOCS / file).write_text(made(), encoding="utf-8")
