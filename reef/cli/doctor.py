"""doctor: checks what Reef needs on this machine and what it keeps, says how to mend it, and with --fix mends what is safe."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef import __version__
from reef.cli.check import Check, State
from reef.cli.check_home import home_checks
from reef.cli.common import HomeOption, JsonOption, ago, out, print_json, say, spinner
from reef.cli.pick import EMBEDDED_MODEL, models_folder, picked_config
from reef.cli.place import here, home_of
from reef.cli.reach import holder_of, unreachable, upstream_fix, without_keys
from reef.client import ReefClient, discovery
from reef.config import Config, load
from reef.errors import ReefError
from reef.launch import locked

_STYLES: dict[State, str] = {"ok": "green", "warning": "yellow", "error": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(doctor)


def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file that reef up is given.")] = None,
    home: HomeOption = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what is safe to mend: it says what before it does it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check what Reef needs on this machine and say how to mend what is wrong. Exits with 1 when something is an error.

    Examples: reef doctor | reef doctor --fix
    """
    folder = home_of(home)
    with spinner("looking"):
        checks = list(_checks(folder, config))
    done: list[dict[str, str]] = []
    for check in checks if fix else ():
        if check.repair is not None:
            if not as_json:
                say(f"mending {check.id}: {check.fix}")
            try:
                done.append({"id": check.id, "did": check.repair()})
            except OSError as error:
                done.append({"id": check.id, "did": f"nothing: {error}"})
    if done:
        checks = list(_checks(folder, config))
    if as_json:
        print_json("doctor", {"doctor": [check.as_dict() for check in checks], "fixed": done})
    else:
        _show(checks, done)
    if any(check.state == "error" for check in checks):
        raise typer.Exit(1)


def _show(checks: list[Check], done: list[dict[str, str]]) -> None:
    for one in done:
        say(f"  {one['id']}: {one['did']}")
    for check in checks:
        out.print(Text.assemble((f"{check.state:9}", _STYLES[check.state]), f"{check.id:14} {check.message}"))
        if check.fix:
            out.print(Text(f"         try: {here(check.fix)}", "dim"))
    if any(check.repair is not None for check in checks):
        say("  reef doctor --fix does what is safe of this", "dim")


def _checks(home: Path, source: Path | None) -> Iterator[Check]:
    yield Check("python", "ok", sys.version.split()[0])
    yield _sqlite()
    loaded, finding = _config(source, home)
    yield finding
    yield from home_checks(home)
    check, status = _daemon(home)
    yield check
    upstream = status["inference"].get("upstream") if status is not None else None
    if upstream is not None:
        yield _upstream(upstream["url"], upstream["last_failure"] if upstream["failing"] else None)
    elif status is None and loaded is not None and loaded.service.upstream_url is not None:
        yield _upstream(loaded.service.upstream_url, None)
    if loaded is not None:
        yield _port(home, loaded.service.host, loaded.service.port)
        yield from _engine(provider=loaded.service.upstream_url is not None)
    yield _sandbox(status)
    yield _proxy()


def _sqlite() -> Check:
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= (3, 51, 3):
        return Check("sqlite", "ok", f"{version}: has the WAL-reset fix")
    said = "has the WAL-reset bug (3.7.0 to 3.51.2); the guard applies: one connection writes, and it alone checkpoints"
    return Check("sqlite", "ok", f"{version}: {said}")


def _config(source: Path | None, home: Path) -> tuple[Config | None, Check]:
    try:
        loaded = load(source, home=home)
    except ReefError as error:
        return None, Check("config", "error", error.message, error.hint)
    from reef.daemon.local import check_recipe, unread_variables

    try:
        check_recipe(picked_config(source, home, {})[0])
    except ReefError as error:
        return loaded, Check("config", "error", error.message, error.hint)
    if unread := unread_variables(loaded):
        return loaded, Check("config", "warning", "; ".join(unread), "unset what is not meant, or correct its name")
    count = sum(origin != "default" for origin in loaded.origins.values()) + len(loaded.recipe_settings)
    return loaded, Check("config", "ok", f"{count} set, the others as they are by default" if count else "defaults")


def _daemon(home: Path) -> tuple[Check, dict[str, Any] | None]:
    """The finding, and the daemon's status where it answers."""
    found, path = discovery(home), home / "daemon.json"
    if not home.is_dir() or not locked(home):
        if path.exists():

            def repair() -> str:
                path.unlink(missing_ok=True)
                return "removed"

            said = "not running; one that was killed left its address behind"
            return Check("daemon", "warning", said, f"remove {path}, then: reef up", repair), None
        return Check("daemon", "warning", "not running", "reef up"), None
    if found is None:
        return Check("daemon", "warning", "starting, or something else holds its lock", "see: reef logs"), None
    try:
        with ReefClient.from_home(home, actor="doctor", timeout_s=5.0) as client:
            status = client.status()
    except (ReefError, OSError) as error:
        return Check(
            "daemon", "error", f"pid {found.get('pid')} does not answer: {error}", "see: reef logs, or: reef down"
        ), None
    daemon, degraded = status["daemon"], status["store"]["degraded"]
    if degraded:
        return Check(
            "daemon", "error", f"{found['url']} answers without receipts: {degraded}", "see the lines above"
        ), status
    if daemon["version"] != __version__:
        said = f"{found['url']} runs {daemon['version']}, this is {__version__}"
        return Check("daemon", "warning", said, "reef down, then: reef up"), status
    return Check("daemon", "ok", f"{found['url']}" + ("" if daemon["ready"] else ", still starting")), status


def _upstream(url: str, failure: dict[str, Any] | None) -> Check:
    """One connection is tried, and nothing is sent; where a proxy stands between, not even that."""
    from reef.daemon.local import proxy_of

    shown = without_keys(url)
    if failure is not None:
        said = f"calls to {shown} have failed for {ago(failure['at'])}: {failure['code']}: {failure['message']}"
        return Check("upstream", "error", said, upstream_fix(failure["code"]))
    if proxy_of(url) is not None:
        return Check("upstream", "ok", f"{shown} goes through a proxy, and is not tried from here")
    why = unreachable(url)
    if why is not None:
        return Check(
            "upstream", "warning", f"{shown} takes no connection: {why}", "start it, or check reef.upstream_url"
        )
    return Check("upstream", "ok", f"{shown} takes connections")


def _port(home: Path, host: str, port: int) -> Check:
    found = discovery(home)
    if found is not None and found["url"].endswith(f":{port}") and locked(home):
        return Check("port", "ok", f"{port} is held by the daemon of this directory")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            holder = holder_of(port)
            said = f"{host}:{port} cannot be had: {error.strerror}" + (f", held by {holder}" if holder else "")
            return Check("port", "warning", said, "reef up --port 0 picks a free one")
    return Check("port", "ok", f"{host}:{port} is free" if port else "a free one is picked")


def _engine(*, provider: bool) -> Iterator[Check]:
    from reef.daemon.local import torch_version

    version = torch_version()
    for_engine = "; only the embedded engine needs it" if provider else ""
    if version is not None:
        yield Check("torch", "ok", version)
    elif provider:
        yield Check("torch", "ok", f"not installed{for_engine}")
    else:
        fix = "pip install 'reefd[torch]' for the embedded engine, or answer with --upstream-url URL"
        yield Check("torch", "warning", "not installed", fix)
    folder = models_folder() / EMBEDDED_MODEL
    if (folder / "config.json").exists():
        yield Check("model", "ok", str(folder))
    else:
        yield Check(
            "model", "ok", f"{EMBEDDED_MODEL} is not fetched{for_engine or '; reef up fetches it when it needs it'}"
        )


def _sandbox(status: dict[str, Any] | None) -> Check:
    from reef.evolve.sandbox import bubblewrap

    rows = status["scenarios"] if status is not None else []
    open_ones = [f"{row['name']} ({row['evolving']['unboxed']})" for row in rows if row["evolving"].get("unboxed")]
    if open_ones:
        said = f"episodes have your rights and run without a sandbox: {', '.join(open_ones)}"
        return Check("sandbox", "warning", said, "install bubblewrap, then: reef down, and reef up")
    why = bubblewrap()
    return Check("sandbox", "ok", "bubblewrap" if why is None else f"{why}; only the evolution of a harness needs it")


def _proxy() -> Check:
    names = [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy") if os.environ.get(name)]
    if not names:
        return Check("proxy", "ok", "none set")
    spared = {one.strip() for one in (os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or "").split(",")}
    shown = " and ".join(names)
    if "*" in spared or {"127.0.0.1", "localhost"} <= spared:
        return Check("proxy", "ok", f"{shown} is set, and loopback is spared")
    said = f"{shown} is set also for loopback: reef never uses it for its own daemon, but agents may and then find none"
    return Check("proxy", "warning", said, "export NO_PROXY=127.0.0.1,localhost,::1")
