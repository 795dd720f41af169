"""The ``reef`` command: puts the nouns together and turns errors into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from reef import __version__
from reef.cli import backup, daemon, doctor, exporting, logs, records, releases, tools, verify
from reef.cli.common import show_error
from reef.errors import ReefError

_EPILOG = (
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 daemon not reachable, 4 not found, 5 refused by gate, 6 degraded, "
    "130 interrupted."
)

app = typer.Typer(
    name="reef",
    no_args_is_help=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="An agent gets better from being used. Start with: reef demo, or reef up and then reef call.",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"reef {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""


for module in (daemon, records, releases, logs, doctor, verify, backup, exporting, tools):
    module.add_to(app)


def main() -> None:
    """Entry point; no traceback reaches a user."""
    as_json = "--json" in sys.argv
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names and answers hold what a terminal may not
    try:
        app(standalone_mode=True)
    except ReefError as error:
        show_error(error, as_json=as_json)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe has left: nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        show_error(
            ReefError(said, hint="see: reef doctor, or choose another state directory with --home"), as_json=as_json
        )
        sys.exit(1)
    except Exception as error:  # the last edge: a bug of ours is told in a line, and its trace only to who asks for it
        if os.environ.get("REEF_TRACE"):
            raise
        said = f"reef has a bug: {type(error).__name__}: {error}"
        show_error(ReefError(said, hint="please report it with what REEF_TRACE=1 shows"), as_json=as_json)
        sys.exit(1)


if __name__ == "__main__":
    main()
