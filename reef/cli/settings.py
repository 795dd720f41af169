"""config: what is set and where that comes from, what each key does, and a file of it in an editor."""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from reef.cli.common import HomeOption, JsonOption, out, print_json, say, show_error, table
from reef.cli.complete import complete_keys
from reef.cli.last import last_start
from reef.cli.pager import paged
from reef.cli.pick import picked_config
from reef.cli.place import home_of
from reef.config import load
from reef.errors import BadRequest, NotFound, ReefError

config_app = typer.Typer(
    no_args_is_help=True, help="The configuration: what is set, what each key does, and a file of it."
)

FileOption = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")]
_EDITORS = ("VISUAL", "EDITOR")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(config_app, name="config")


@config_app.command("show")
@paged
def config_show(
    path: FileOption = None,
    home: HomeOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Every key with the value that reef up would use from here; secrets are masked.

    A daemon that already runs keeps what it was started with.

    Examples: reef config show --origin | reef config show -c serve.yaml --json
    """
    from reef.daemon.local import config_rows, unread_variables

    loaded, picked = picked_config(path, home_of(home), {})
    rows = config_rows(loaded)
    for name in picked.overrides:
        rows[name]["origin"] = "reef up"
    for sentence in unread_variables(loaded) if not as_json else ():
        say(f"warning: {sentence}", "yellow")
    if as_json:
        print_json("config", rows)
        return
    columns = ("key", "value", "origin") if origin else ("key", "value")
    table(
        columns,
        (
            (name, "-" if row["value"] in (None, "") else row["value"], row["origin"])[: len(columns)]
            for name, row in rows.items()
        ),
        empty="",
    )


@config_app.command("keys")
@paged
def config_keys(as_json: JsonOption = False) -> None:
    """Every key that can be set, with what it does. Example: reef config keys"""
    from reef.daemon.local import key_rows

    rows = key_rows()
    if as_json:
        print_json("keys", rows)
    else:
        table(("key", "what it does"), ((name, row["help"]) for name, row in rows.items()), empty="")


@config_app.command("explain")
def config_explain(
    key: Annotated[str, typer.Argument(help="A key, e.g. reef.port.", autocompletion=complete_keys)],
    as_json: JsonOption = False,
) -> None:
    """One key: what it does, what it takes, its default, and how else it can be set. Example: reef config explain reef.port"""
    from reef.daemon.local import key_rows

    rows = key_rows()
    name = key.removeprefix("--") if "." in key else f"reef.{key}"
    if name not in rows:
        near = difflib.get_close_matches(name, rows, n=1)
        raise NotFound(
            f"no key {key!r}", hint=(f"did you mean {near[0]}? " if near else "") + "list them with: reef config keys"
        )
    row = rows[name]
    if as_json:
        print_json("key", {"name": name, **row})
        return
    out.print(Text(f"{name}: {row['help']}"))
    taken = ", ".join(row["choices"]) or row["bounds"]
    for word, value in (
        ("takes", f"{row['type']}, {taken}" if taken else row["type"]),
        ("default", "-" if row["default"] is None else row["default"]),
        ("of recipes", ", ".join(row.get("recipes", ()))),
        ("flag", f"--{name} VALUE"),
        ("variable", row["env"] or ""),
    ):
        if value != "":
            out.print(Text(f"  {word:10} {value}"))


@config_app.command("edit")
def config_edit(path: FileOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Open a configuration file in $EDITOR; it is saved only when it is right, and stays as it was otherwise.

    Without -c it is the file of the last start. A file that is not there is begun.

    Examples: reef config edit -c serve.yaml | EDITOR=nano reef config edit
    """
    folder = home_of(home)
    file = path if path is not None else _last_file(folder)
    editor = next((os.environ[name] for name in _EDITORS if os.environ.get(name)), "")
    if not editor and (sys.stdin is None or not sys.stdin.isatty()):
        raise BadRequest(
            "no editor is named, and this is no terminal", hint="export EDITOR=..., or edit the file by hand"
        )
    target = Path(os.path.realpath(file))  # a link stays one
    before = target.read_bytes() if target.exists() else None
    draft = target.with_name(f".{target.stem}.{os.getpid()}.yaml")
    draft.write_bytes(_BEGIN.encode() if before is None else before)
    keep = False
    try:
        while True:
            _edit(editor or "vi", draft)
            error = _wrong(draft, folder)
            if error is None:
                break
            error.message = error.message.replace(draft.name, file.name)
            if as_json or not _again(error):
                keep, error.hint = True, f"{file} is as it was; what you wrote is in {draft}"
                raise error
        changed = draft.read_bytes() != (_BEGIN.encode() if before is None else before)
        if changed:
            if before is not None:
                draft.chmod(target.stat().st_mode & 0o777)
            os.replace(draft, target)
    finally:
        if not keep:
            draft.unlink(missing_ok=True)
    if as_json:
        print_json("edit", {"path": str(file), "changed": changed})
    else:
        say(f"saved; use it with: reef up -c {shlex.quote(str(file))}" if changed else f"{file} is as it was")


_BEGIN = """# Keys: reef config keys, and: reef config explain KEY
reef:
  # port: 8900
training: {}
"""


def _last_file(home: Path) -> Path:
    kept = last_start(home)
    if kept is None or kept.config is None:
        raise BadRequest(
            "which file? the last start here used none",
            hint="name one, it is begun when it is not there: -c serve.yaml",
        )
    return Path(kept.config)


def _edit(editor: str, draft: Path) -> None:
    try:
        done = subprocess.run([*shlex.split(editor), str(draft)], check=False)
    except (OSError, ValueError) as error:
        raise ReefError(
            f"the editor {editor!r} cannot be started: {error}", hint="export EDITOR=nano, or another"
        ) from error
    if done.returncode:
        raise ReefError(f"the editor {editor!r} ended with {done.returncode}; nothing was changed")


def _wrong(draft: Path, home: Path) -> ReefError | None:
    from reef.daemon.local import check_recipe

    try:
        check_recipe(load(draft, home=home))
    except ReefError as error:
        return error
    return None


def _again(error: ReefError) -> bool:
    """Whether somebody who is there wants to mend it."""
    if sys.stdin is None or not sys.stdin.isatty():
        return False
    show_error(error, as_json=False)
    return bool(typer.confirm("edit it again?", default=True, err=True))
