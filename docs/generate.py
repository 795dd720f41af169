"""Writes docs/config.md from the configuration table. Run it after changing a key: python docs/generate.py."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

from reef.config import SECTIONS, Knob, env_name
from reef.recipes import recipe_class_for, recipe_kinds

PAGE = Path(__file__).parent / "config.md"
INTRO = """# Configuration

<!-- made by docs/generate.py from reef/config.py; a test keeps them equal -->

A YAML file with two sections, `reef:` and `training:`, given with `reef up -c serve.yaml`. Each key can also be set by
its environment variable (where the table names one) or as a flag (`--reef.port 8901`, `--training.seed 7`). A flag goes
before the file, the file before the environment, the environment before the default. `${section.key}` and
`${ENVIRONMENT_VARIABLE}` in a value are filled in. An unknown key, a key given twice, a wrong type or a value out of
bounds stops the start with its line and the nearest name. `reef config show --origin`, with the same `-c`, prints
what `reef up` would use and where that comes from; what nobody set and it picks by itself has the origin `reef up`.
"""


def _row(name: str, hint: object, item: dataclasses.Field[object], env: str | None) -> str:
    rule: Knob = item.metadata["reef"]
    kind = str(hint).replace("<class '", "").replace("'>", "").replace("pathlib.Path", "path").replace(" | None", "")
    kind = kind.replace("pathlib._local.Path", "path")
    default = "" if item.default is None or item.default == "" else f"`{item.default}`"
    choices = f" One of {', '.join(f'`{one}`' for one in rule.choices)}." if rule.choices else ""
    return f"| `{name}` | {kind} | {default} | {rule.help}.{choices} | {f'`{env}`' if env else ''} |"


def page() -> str:
    """The whole page."""
    lines = [INTRO]
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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
