"""service: the daemon as a systemd user unit, or as a launchd agent. Writes and removes the file; starts and stops nothing."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import HomeOption, JsonOption, YesOption, confirm, out, print_json, say
from reef.cli.daemon import ConfigOption, settings_of_words
from reef.cli.pick import picked_config
from reef.cli.place import home_of
from reef.errors import BadRequest, Conflict, NotFound

service_app = typer.Typer(
    no_args_is_help=True, help="Let this machine start the daemon by itself: a systemd user unit, or a launchd agent."
)

_MARK = "written by reef service install"
_LABEL = "reef"
_START_S, _STOP_S = 600, 120
_KEYS = ("reef.token", "reef.upstream_api_key")

NameOption = Annotated[str, typer.Option("--name", help="Name of the unit; another one for a second state directory.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(service_app, name="service")


@service_app.command("install", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def install(
    context: typer.Context,
    config: ConfigOption = None,
    home: HomeOption = None,
    name: NameOption = _LABEL,
    show: Annotated[bool, typer.Option("--print", help="Print the file and write nothing.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the unit, and say what starts it. It takes the settings of reef up; a key goes into a file that it names.

    Examples: reef service install -c serve.yaml | reef service install --upstream-url http://127.0.0.1:11434/v1 --print
    """
    folder, path = home_of(home), _path(name)
    words = _serve_words(folder, config, context.args)
    text = _plist(name, folder, words) if _launchd() else _unit(folder, words)
    if show:
        sys.stdout.write(text)
        return
    present = path.read_text(encoding="utf-8") if path.exists() else None
    if present is not None and present != text:
        if _MARK not in present:
            raise Conflict(f"{path} is there, and is not of Reef", hint="choose another with: --name NAME")
        confirm(f"replace {path}, which starts the daemon otherwise?", yes)
    if present != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    commands = _commands(name, path)["start"]
    if as_json:
        print_json("service", {"path": str(path), "changed": present != text, "next": commands})
        return
    say(f"{path} {'is as it was' if present == text else 'is written'}; nothing is started. Keys and tokens go into")
    say(f"  {folder / 'service.env'} (REEF_UPSTREAM_API_KEY=..., for your eyes only)")
    for command in commands:
        say(f"  next: {command}", "dim")


@service_app.command("uninstall")
def uninstall(name: NameOption = _LABEL, as_json: JsonOption = False) -> None:
    """Remove the unit, and say what stops it; what the daemon keeps stays. Example: reef service uninstall"""
    path = _installed(name)
    path.unlink()
    commands = _commands(name, path)["stop"]
    if as_json:
        print_json("service", {"path": str(path), "changed": True, "next": commands})
        return
    say(f"{path} is removed; a daemon that runs goes on until you stop it")
    for command in commands:
        say(f"  next: {command}", "dim")


@service_app.command("status")
def status(name: NameOption = _LABEL, as_json: JsonOption = False) -> None:
    """Whether there is a unit, what it starts, and what the machine says of it. Example: reef service status"""
    path = _path(name)
    present = path.is_file()
    asked = (
        ["launchctl", "list", f"dev.{name}"] if _launchd() else ["systemctl", "--user", "is-active", f"{name}.service"]
    )
    found: dict[str, Any] = {
        "path": str(path),
        "installed": present,
        "starts": _starts(path) if present else None,
        "state": _asked(asked) if present else None,
    }
    if as_json:
        print_json("service", found)
        return
    if not present:
        say(f"there is no {path}; write it with: reef service install")
        return
    for key in ("path", "starts", "state"):
        out.print(Text(f"{key:8} {found[key] or '-'}"))
    say(f"  look at it with: {_commands(name, path)['look'][0]}", "dim")


def _launchd() -> bool:
    return sys.platform == "darwin"


def _path(name: str) -> Path:
    if not name.replace("-", "").replace("_", "").isalnum():
        raise BadRequest(f"{name!r} is no name of a unit", hint="letters, digits, '-' and '_'", field="name")
    if _launchd():
        return Path.home() / "Library" / "LaunchAgents" / f"dev.{name}.plist"
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "systemd" / "user" / f"{name}.service"


def _installed(name: str) -> Path:
    path = _path(name)
    if not path.is_file():
        raise NotFound(f"there is no {path}", hint="write it with: reef service install")
    if _MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise Conflict(f"{path} is not of Reef", hint="name the unit with: --name NAME")
    return path


def _serve_words(folder: Path, config: Path | None, extra: list[str]) -> list[str]:
    """What the unit runs; raises when a start with it would fail, or would write a secret into the unit."""
    from reef.daemon.local import check_recipe

    overrides = settings_of_words(extra)
    if given := [key for key in overrides if key in _KEYS]:
        raise BadRequest(
            f"{given[0]} does not belong into a unit, which others may read",
            hint=f"write REEF_{given[0][5:].upper()}=... into {folder / 'service.env'}",
        )
    loaded, picked = picked_config(config, folder, overrides)
    check_recipe(loaded)
    if picked.needs_model:
        raise BadRequest(
            f"{picked.said}, and it is not fetched yet", hint="reef model pull, then this command once more"
        )
    settings = [f"--{key}={value}" for key, value in {**picked.overrides, **overrides}.items()]
    words = [sys.executable, "-m", "reef.cli.main", "serve", "--home", str(folder)]
    return [*words, *(["-c", os.path.abspath(config)] if config is not None else []), *settings]


def _unit(folder: Path, words: list[str]) -> str:
    quoted = " ".join('"' + word.translate({34: '\\"', 92: "\\\\", 37: "%%", 36: "$$"}) + '"' for word in words)
    path = str(folder).replace("%", "%%")
    # No ProtectSystem or PrivateTmp: agents work on your files, and their sandbox must be able to mount.
    return f"""# {_MARK}
[Unit]
Description=Reef, a daemon that makes agents better from use

[Service]
Type=notify
ExecStart={quoted}
EnvironmentFile=-{path}/service.env
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2 3 4
TimeoutStartSec={_START_S}
TimeoutStopSec={_STOP_S}
KillMode=mixed
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def _plist(name: str, folder: Path, words: list[str]) -> str:
    env = shlex.quote(str(folder / "service.env"))
    script = f"[ -f {env} ] && set -a && . {env}; exec {shlex.join(words)}"
    document = {
        "Label": f"dev.{name}",
        "ProgramArguments": ["/bin/sh", "-c", script],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": _STOP_S,
        "Umask": 0o077,
        "ProcessType": "Background",
        "StandardErrorPath": str(folder / "logs" / "service.log"),
    }
    text = plistlib.dumps(document, sort_keys=False).decode()
    return text.replace("<plist", f"<!-- {_MARK} -->\n<plist", 1)


def _starts(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    if _launchd():
        return str(plistlib.loads(text.encode())["ProgramArguments"][-1])
    line = next((one for one in text.splitlines() if one.startswith("ExecStart=")), "")
    return shlex.join(shlex.split(line.partition("=")[2].replace("$$", "$").replace("%%", "%")))


def _commands(name: str, path: Path) -> dict[str, list[str]]:
    if _launchd():
        domain = f"gui/{os.getuid()}"
        return {
            "start": [f"launchctl bootstrap {domain} {shlex.quote(str(path))}"],
            "stop": [f"launchctl bootout {domain}/dev.{name}"],
            "look": [f"launchctl print {domain}/dev.{name}"],
        }
    return {
        "start": [
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {name}",
            "loginctl enable-linger  (so that it runs while you are not logged in)",
        ],
        "stop": [f"systemctl --user disable --now {name}", "systemctl --user daemon-reload"],
        "look": [f"systemctl --user status {name}   journalctl --user -u {name}"],
    }


def _asked(command: list[str]) -> str | None:
    """What the machine's own command says in a line; None where there is none."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout or done.stderr).strip().splitlines()[0] if (done.stdout or done.stderr).strip() else None
