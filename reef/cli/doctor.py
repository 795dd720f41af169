"""doctor: checks what Reef needs on this machine and what it keeps, says how to mend it, and with --fix mends what is safe."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef import __version__
from reef.cli.check import Check, State
from reef.cli.common import HomeOption, JsonOption, ago, out, print_json, say, size
from reef.cli.pick import EMBEDDED_MODEL, models_folder, picked_config
from reef.cli.place import here, home_of
from reef.cli.reach import holder_of, unreachable, upstream_fix, without_keys
from reef.client import ReefClient, discovery
from reef.config import Config, load
from reef.errors import ReefError
from reef.launch import locked

_STYLES: dict[State, str] = {"ok": "green", "warning": "yellow", "error": "bold red"}
_SLOW_FSYNC_MS = 100.0
_LITTLE_BYTES, _TOO_LITTLE_BYTES = 5e9, 1e9
_BIG_LOG_BYTES, _KEPT_LOG_BYTES = 50 * 2**20, 2**20
_BIG_WAL_BYTES = 256 * 2**20
_AHEAD_S, _EARLIEST = 60.0, 1_700_000_000.0
_PROBE = ".doctor"
_PRIVATE = (
    "token",
    "daemon.json",
    "reef.db",
    "reef.db-wal",
    "reef.db-shm",
    "last_call.json",
    "logs",
    "artifacts",
    "engine",
    "episodes",
    "drafts",
)


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
    yield _home(home)
    if home.is_dir():
        yield _permissions(home)
        yield from _disk(home)
        yield _database(home)
        yield _logs(home / "logs")
    yield _leftovers({home.parent, home, Path.cwd()})
    yield _clock(home)
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


def _home(home: Path) -> Check:
    if (home.exists() or home.is_symlink()) and not home.is_dir():
        said = f"a link to {os.readlink(home)}, which is not there" if home.is_symlink() else "not a directory"
        return Check("home", "error", f"{home} is {said}", "choose another with --home")
    nearest = next((one for one in (home, *home.absolute().parents) if one.exists()), home)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Check(
            "home",
            "error",
            f"{nearest} is not writable",
            f"make it writable, or choose another than {home} with --home",
        )
    if home.exists() and hasattr(os, "getuid") and home.stat().st_uid != os.getuid():
        return Check("home", "warning", f"{home} belongs to another user", "run Reef as its owner")
    return Check("home", "ok", str(home) if home.exists() else f"{home} (made at the first start)")


def _permissions(home: Path) -> Check:
    wrong = [path for name in _PRIVATE if (path := home / name).exists() and path.stat().st_mode & 0o077]
    wrong = [home, *wrong] if home.stat().st_mode & 0o077 else wrong
    if not wrong:
        return Check("permissions", "ok", "for your eyes only")

    def repair() -> str:
        for path in wrong:
            path.chmod(0o700 if path.is_dir() else 0o600)
        return f"changed {len(wrong)}"

    shown = ", ".join(
        f"{path.name if path != home else path} {stat.S_IMODE(path.stat().st_mode):o}" for path in wrong[:4]
    )
    fix = "chmod -R go= " + str(home)
    return Check("permissions", "warning", f"others may read {shown}", fix, repair)


def _disk(home: Path) -> Iterator[Check]:
    free = shutil.disk_usage(home).free
    state: State = "ok" if free > _LITTLE_BYTES else "warning" if free > _TOO_LITTLE_BYTES else "error"
    hint = "" if state == "ok" else "free some space, or lower reef.retention_gb and reef.keep_releases"
    yield Check("disk", state, f"{size(free)} free", hint)
    path, times = home / _PROBE, list[float]()
    try:
        with path.open("wb") as file:
            for _ in range(15):
                file.write(b"x" * 4096)
                file.flush()
                start = time.perf_counter()
                os.fsync(file.fileno())
                times.append((time.perf_counter() - start) * 1000)
    except OSError as error:
        yield Check("fsync", "error", f"{home} cannot be written: {error.strerror}", "see: reef doctor's lines above")
        return
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    median_ms = sorted(times)[len(times) // 2]
    said = f"{median_ms:.1f} ms, at worst {max(times):.1f} ms: what each answer waits for"
    slow = median_ms > _SLOW_FSYNC_MS
    yield Check("fsync", "warning" if slow else "ok", said, "put --home on a faster disk" if slow else "")


def _database(home: Path) -> Check:
    path, wal = home / "reef.db", home / "reef.db-wal"
    if not path.exists():
        return Check("database", "ok", "none yet")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(connection):
            said = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        fix = "keep a copy of the directory, then: reef restore FILE --force (moves this one aside)"
        return Check("database", "error", f"damaged: {said}", fix)
    log_bytes = wal.stat().st_size if wal.exists() else 0
    if log_bytes > _BIG_WAL_BYTES:
        said = f"sound, but its log is {size(log_bytes)}: a program that reads it has stayed open"
        return Check("database", "warning", said, "close it; the daemon then shrinks the log by itself")
    return Check("database", "ok", f"sound, {size(path.stat().st_size + log_bytes)}")


def _logs(folder: Path) -> Check:
    big = [path for path in sorted(folder.glob("*.log")) if path.stat().st_size > _BIG_LOG_BYTES]
    if not big:
        total = sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
        return Check("logs", "ok", size(total))

    def repair() -> str:
        for path in big:  # cut in place: the program that writes it keeps it open
            with path.open("rb+") as file:
                file.seek(-_KEPT_LOG_BYTES, os.SEEK_END)
                kept = file.read()
                file.seek(0)
                file.truncate()
                file.write(kept.partition(b"\n")[2])
        return "cut " + ", ".join(path.name for path in big)

    shown = ", ".join(f"{path.name} {size(path.stat().st_size)}" for path in big)
    return Check("logs", "warning", shown, f"cut {folder} to the last {size(_KEPT_LOG_BYTES)} of each", repair)


def _leftovers(folders: set[Path]) -> Check:
    """What a killed backup or restore left where such things are made."""
    from reef.daemon.workplace import clear_leftovers, leftovers

    found = [path for folder in sorted(folders) for path in leftovers(folder)]
    if not found:
        return Check("leftovers", "ok", "none")

    def repair() -> str:
        for folder in folders:
            clear_leftovers(folder)
        return f"removed {len(found)}"

    shown = ", ".join(map(str, found[:3]))
    said = f"a backup or restore that was killed left prompts and answers in {shown}"
    return Check("leftovers", "warning", said, f"rm -r {' '.join(map(shlex.quote, map(str, found)))}", repair)


def _clock(home: Path) -> Check:
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    drift_s = abs((time.time() - wall) - (time.monotonic() - steady))
    if wall < _EARLIEST:
        return Check("clock", "error", f"it says {time.strftime('%Y-%m-%d', time.gmtime(wall))}", "set the clock")
    if drift_s > 0.05:
        return Check(
            "clock", "warning", f"it jumped by {drift_s:.2f} s just now", "see that only one program sets the clock"
        )
    newest = (
        max((path.stat().st_mtime for path in home.glob("*") if path.exists()), default=0.0) if home.is_dir() else 0.0
    )
    if newest > wall + _AHEAD_S:
        said = f"files in {home} are {newest - wall:.0f} s ahead of it: it was set back, or the disk's server has another time"
        return Check(
            "clock", "warning", said, "set the clock; order and receipts do not depend on it, retention by age does"
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


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
