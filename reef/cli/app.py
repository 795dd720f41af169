"""The ``reef`` command: puts the nouns together and turns errors into one shape and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import re
import sys
from typing import Annotated, Any

import typer

from reef import __version__
from reef.cli.commands import Commands, walk
from reef.errors import BadRequest, ReefError

_EPILOG = """\b
Exit codes:
  0 ok                     4 what is named is not there
  1 failed                 5 refused by gate
  2 usage                  6 degraded
  3 daemon not reachable   130 interrupted
Docs: docs/operate.md"""

app = typer.Typer(
    name="reef",
    cls=Commands,
    rich_markup_mode=None,  # what draws panels takes longer to load than all else together
    no_args_is_help=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
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
    no_pager: Annotated[
        bool, typer.Option("--no-pager", help="Long output stays out of a pager (also: NO_PAGER=1).")
    ] = False,
) -> None:
    """Options of every command."""


_TyperError = typer.BadParameter.__mro__[2]
"""What all errors of the parser are; the parser itself lies in another package from one version to the next."""


def run() -> int:
    """Run what was typed; errors leave in one shape, no traceback reaches a user, and the exit code is returned."""
    words = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    if words[1:2] != ["agent"] and "--no-pager" in words[1:]:  # wherever it stands: it is about this terminal
        sys.argv.remove("--no-pager")
        os.environ["NO_PAGER"] = "1"
    as_json = "--json" in words or "--jsonl" in words
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names and answers hold what a terminal may not
    if "_REEF_COMPLETE" in os.environ:  # of help texts for a shell Typer takes the markup away that ours do not have
        with contextlib.suppress(ImportError):  # another Typer than the one this knows
            vars(importlib.import_module("typer._completion_classes"))["_sanitize_help_text"] = str
    try:
        code = app(prog_name="reef", standalone_mode=False)
        sys.stdout.flush()  # what it cannot take is an error here, and not one of the interpreter's when it ends
        return code if isinstance(code, int) else 0
    except ReefError as error:
        told = _better(error)
        _tell(told, as_json=as_json)
        return told.exit_code
    except typer.Abort as error:
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):  # a question's has no cause
            raise KeyboardInterrupt from error
        _tell(ReefError("nothing was done: the answer was no", code="declined"), as_json=as_json)
    except (BrokenPipeError, SystemExit) as error:  # the reader of a pipe has left: nothing more to say
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            told = ReefError(f"this cannot be written: {error.strerror or error}")
        else:
            hint = "see: reef doctor, or choose another state directory with --home"
            dangling = os.path.islink(error.filename) and not os.path.exists(error.filename)
            said = f"a link to {os.readlink(error.filename)}, which is not there" if dangling else error.strerror
            told = ReefError(f"{error.filename}: {said}", hint=hint)
        _tell(told, as_json=as_json)
    except UnicodeEncodeError as error:  # only bytes that the shell or a pipe gave, and that are no UTF-8
        said = f"{error.object[max(0, error.start - 20) : error.end + 20]!r} is no UTF-8 text"
        wrong = BadRequest(said, hint="write it in UTF-8")
        _tell(wrong, as_json=as_json)
        return wrong.exit_code
    except Exception as error:  # the last edge: a bug of ours is told in a line, and its trace only to who asks for it
        if isinstance(error, _TyperError):
            return _misused(error, as_json)
        if os.environ.get("REEF_TRACE"):
            raise
        said = f"reef has a bug: {type(error).__name__}: {error}"
        _tell(ReefError(said, hint="please report it with what REEF_TRACE=1 shows"), as_json=as_json)
    return 1


def _tell(error: ReefError, *, as_json: bool) -> None:
    from reef.cli.common import show_error  # with all that prints: not needed where nothing is wrong

    show_error(error, as_json=as_json)


def _better(error: ReefError) -> ReefError:
    from reef.cli.common import known_better

    return known_better(error)


def _misused(error: Any, as_json: bool) -> int:
    """What the parser refuses, with the command's usage and the name that was perhaps meant."""
    context, said = getattr(error, "ctx", None), error.format_message()
    path = "reef" if context is None else context.command_path
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        if said.strip():  # else making the error has printed it
            typer.echo(said, err=True)
        return 2
    message = re.split(r" ?\(?(?:Did you mean|Possible options)", said)[0].rstrip(".")
    if context is not None and not as_json:
        typer.echo(context.get_usage(), err=True)
    hint = f"{_meant(error, context, path)}see: {path} --help"
    _tell(BadRequest(message, hint=hint, code="usage"), as_json=as_json)
    return 2


def _meant(error: Any, context: Any, path: str) -> str:
    """The flag or command that was perhaps meant, nothing where none is near."""
    if context is None:
        return ""
    option: str | None = getattr(error, "option_name", None)
    commands = dict(walk(context)) if hasattr(context.command, "list_commands") else {}
    if option is None:
        typed = (re.findall("'(.*?)'", error.format_message()) or [""])[0]
        near = difflib.get_close_matches(typed, commands, n=1)
    else:
        near = difflib.get_close_matches(option, [name for one in context.command.params for name in one.opts], n=1)
        below = [name for name, one in commands.items() for item in one.params if option in item.opts]
        if below:
            name = next((word for word in sys.argv if word in below), below[0])
            return f"it stands behind the command, as in: {path} {name} {option}; "
    return f"did you mean {near[0]}? " if near else ""
