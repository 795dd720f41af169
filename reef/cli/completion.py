"""completion: the script that a shell loads to complete reef's words."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
import typer.completion

from reef.cli.common import JsonOption, print_json, say
from reef.errors import BadRequest, ReefError

_SHELLS = ("bash", "zsh", "fish")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(completion)


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", autocompletion=lambda: list(_SHELLS))],
    install: Annotated[
        bool, typer.Option("--install", help="Write it where the shell finds it, and say where.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Complete names of commands, scenarios, releases and records in a shell: prints the script it loads.

    Examples: reef completion bash --install | reef completion zsh > ~/.zfunc/_reef
    """
    if shell not in _SHELLS:
        raise BadRequest(f"no shell {shell!r}", hint=f"one of: {', '.join(_SHELLS)}")
    path: str | None = None
    script = typer.completion.get_completion_script(prog_name="reef", complete_var="_REEF_COMPLETE", shell=shell)  # type: ignore[attr-defined]
    if install:
        try:
            _, found = typer.completion.install(shell=shell, prog_name="reef", complete_var="_REEF_COMPLETE")  # type: ignore[attr-defined]
        except OSError as error:
            said = f"{error.filename or 'the shell settings'} cannot be written: {error.strerror}"
            raise ReefError(said, hint=f"print it and put it elsewhere: reef completion {shell}") from error
        path = str(found)
    if as_json:
        print_json("completion", {"shell": shell, "installed": path, "script": script})
    elif path is not None:
        say(f"{shell} completion is in {path}; it works in shells that start from now on")
    else:
        sys.stdout.write(f"{script.strip()}\n")
