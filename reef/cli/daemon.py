"""up, down, status, serve: the daemon's life."""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from reef.cli.common import (
    HomeOption,
    JsonOption,
    YesOption,
    ago,
    client_of,
    counted,
    out,
    print_json,
    say,
    size,
    spinner,
    table,
)
from reef.cli.complete import complete_recipes
from reef.cli.last import last_start, remember
from reef.cli.pager import paged
from reef.cli.pick import picked_config
from reef.cli.place import here, home_of
from reef.cli.reach import upstream_fix
from reef.cli.tools import fetch_embedded
from reef.config import load
from reef.errors import BadConfig, BadRequest, Conflict
from reef.launch import in_use, running, spawn, stop, wait_ready

_FLAGS = ("host", "port", "upstream-url", "upstream-model", "upstream-api-key", "recipe", "model-path")

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="YAML file with reef.* and training.* keys.")]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on.")]
PortOption = Annotated[str | None, typer.Option(help="Port to listen on; 0 picks a free one.")]
UpstreamUrlOption = Annotated[str | None, typer.Option(help="Provider that answers calls.")]
UpstreamModelOption = Annotated[str | None, typer.Option(help="Model id at the provider.")]
UpstreamKeyOption = Annotated[str | None, typer.Option(help="Key for the provider; better in REEF_UPSTREAM_API_KEY.")]
RecipeOption = Annotated[
    str | None, typer.Option(help="What feedback becomes, e.g. record, pg, grpo.", autocompletion=complete_recipes)
]
ModelPathOption = Annotated[str | None, typer.Option(help="Hugging Face folder or GGUF file for the embedded engine.")]
WaitOption = Annotated[float, typer.Option("--wait", help="Seconds to wait until it is ready.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=settings)(up)
    app.command(context_settings=settings)(serve)
    app.command()(down)
    app.command()(status)


def up(
    context: typer.Context,
    config: ConfigOption = None,
    home: HomeOption = None,
    host: HostOption = None,
    port: PortOption = None,
    upstream_url: UpstreamUrlOption = None,
    upstream_model: UpstreamModelOption = None,
    upstream_api_key: UpstreamKeyOption = None,
    recipe: RecipeOption = None,
    model_path: ModelPathOption = None,
    wait: WaitOption = 120.0,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start the daemon in the background and return when it is ready.

    Without any setting it takes REEF_UPSTREAM_URL, else an Ollama on its usual port, else the embedded model, and says so.
    Any key can be given as --reef.KEY VALUE or --training.KEY VALUE.

    Examples: reef up | reef up --upstream-url https://api.openai.com/v1 | reef up -c serve.yaml --training.seed 7
    """
    folder = home_of(home)
    named = (host, port, upstream_url, upstream_model, upstream_api_key, recipe, model_path)
    overrides = _overrides(context.args, named)
    if (found := running(folder)) is not None:
        _check_agreement(found, folder, config, overrides)
        _say_up(found, folder, as_json, fresh=False)
        return
    settings, said = _settings(folder, config, overrides, yes, quiet=as_json)
    if not as_json:
        _say_last(folder, bare=config is None and not overrides)
        say(said)
    child = spawn(folder, settings, config=config)
    with spinner("starting"):
        found = wait_ready(child, folder, wait)
    if found["pid"] != child.pid:
        _check_agreement(found, folder, config, overrides)
    else:
        remember(folder, config, overrides)
    _say_up(found, folder, as_json, fresh=found["pid"] == child.pid)


def serve(
    context: typer.Context,
    config: ConfigOption = None,
    home: HomeOption = None,
    host: HostOption = None,
    port: PortOption = None,
    upstream_url: UpstreamUrlOption = None,
    upstream_model: UpstreamModelOption = None,
    upstream_api_key: UpstreamKeyOption = None,
    recipe: RecipeOption = None,
    model_path: ModelPathOption = None,
    yes: YesOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log to the file only.")] = False,
) -> None:
    """Run the daemon in the foreground; Ctrl-C stops it in order.

    Example: reef serve -c serve.yaml --reef.port 8901
    """
    from reef.daemon.lifecycle import serve as run  # the one place where the CLI needs the daemon's code

    folder = home_of(home)
    if not quiet and running(folder) is not None:
        raise in_use(folder)  # before a question about a model
    named = (host, port, upstream_url, upstream_model, upstream_api_key, recipe, model_path)
    overrides = _overrides(context.args, named)
    settings, said = _settings(folder, config, overrides, yes, quiet=quiet)
    loaded = load(config, overrides=settings, home=folder)
    if not quiet:
        say(said)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remember(folder, config, overrides)
    raise typer.Exit(run(loaded, echo=not quiet))


def down(
    home: HomeOption = None,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for a clean stop.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Stop the daemon: answers in flight end, what is recorded is committed. Example: reef down"""
    folder = home_of(home)
    with spinner("stopping"):
        stopped = stop(folder, wait)
    if as_json:
        print_json("down", {"stopped": stopped})
    else:
        say("stopped" if stopped else f"no daemon runs on {folder}")


@paged
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """What runs, what it has recorded, and what each scenario waits for. Examples: reef status | reef status --json"""
    with client_of(home) as client:
        found = client.status()
    if as_json:
        print_json("status", found)
    else:
        _show_status(found)
    if found["store"]["degraded"] or not found["daemon"]["ready"]:
        raise typer.Exit(6)


# -- inside


def settings_of_words(extra: list[str]) -> dict[str, str]:
    """Settings that stand behind a command as reef up takes them: its own flags, and keys."""
    words: list[str] = []
    for word in extra:
        flag, given, value = word.partition("=")
        words.append(f"--reef.{flag[2:].replace('-', '_')}{given}{value}" if flag[2:] in _FLAGS else word)
    return _overrides(words, (None,) * len(_FLAGS))


def _overrides(extra: list[str], named: tuple[str | None, ...]) -> dict[str, str]:
    """``--reef.key value`` and ``--reef.key=value`` pairs plus the named flags, as settings."""
    found = {
        f"reef.{flag.replace('-', '_')}": value for flag, value in zip(_FLAGS, named, strict=True) if value is not None
    }
    left = list(extra)
    while left:
        word = left.pop(0)
        key, given, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or key.split(".")[0] not in ("reef", "training"):
            known = [f"--{flag}" for flag in (*_FLAGS, "config", "home", "wait", "yes", "json", "quiet")]
            near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise BadRequest(
                f"unknown argument {word!r}", hint=f"{guess}keys are given as --reef.port 8901 or --training.seed 7"
            )
        if not given:
            if not left:
                raise BadRequest(f"--{key} needs a value", hint=f"put one behind it: --{key} VALUE")
            value = left.pop(0)
        found[key] = value
    return found


def _settings(
    folder: Path, path: Path | None, overrides: dict[str, str], yes: bool, *, quiet: bool
) -> tuple[dict[str, str], str]:
    """What the daemon is told, with what was picked filled in, and the sentence about it.

    Errors in the configuration show here, before anything is fetched or started.
    """
    from reef.daemon.local import check_recipe, try_recipe, unread_variables

    loaded, picked = picked_config(path, folder, overrides)
    check_recipe(loaded)
    for sentence in unread_variables(loaded) if not quiet else ():
        say(f"warning: {sentence}", "yellow")
    if picked.needs_model:
        try_recipe(loaded)  # what it lacks is said before anybody is asked about a download
        fetch_embedded(yes)
    return {**picked.overrides, **overrides}, picked.said


def _say_last(folder: Path, *, bare: bool) -> None:
    """Where nothing is given, and something was the last time, say so: nothing is taken from then."""
    kept = last_start(folder)
    if bare and kept is not None:
        say(f"starting with the defaults and the environment; the last time it was: {kept.command}")


def _check_agreement(found: dict[str, Any], folder: Path, path: Path | None, overrides: dict[str, str]) -> None:
    """Raise Conflict when what is given now is not what the daemon that runs was started with."""
    from reef.daemon.local import check_recipe, differing

    running_with = found.get("settings", {})
    given = load(path, overrides=overrides, home=folder)
    if not given.service.recipe and (picked := running_with.get("reef.recipe")):  # its keys are checked against it
        same = load(path, overrides={**overrides, "reef.recipe": picked}, home=folder)
        try:
            check_recipe(same)
            given = same
        except BadConfig:  # where it cannot be imported from here, nothing can be set of it
            if same.recipe_settings:
                raise
    if differences := differing(given, running_with, urlsplit(found["url"]).port or 0):
        raise Conflict(
            f"a daemon runs at {found['url']} with other settings. {'; '.join(differences)}",
            hint="leave them out, or start it again with them: reef down, then this command once more",
            code="other_settings",
        )


def _say_up(found: dict[str, Any], folder: Path, as_json: bool, *, fresh: bool) -> None:
    if as_json:
        print_json("up", {"url": found["url"], "pid": found["pid"], "home": str(folder), "started": fresh})
        return
    say(f"{'ready' if fresh else 'already running'} at {found['url']}  (home {folder})")
    settings = found.get("settings", {})
    served = "reef.seed" in settings  # every recipe that updates a harness has one
    first = f"reef harness install {settings.get('reef.adapter') or 'pi'}" if served else 'reef call "hello"'
    say(f"  next: {first}   reef status   reef down", "dim")


def _show_status(found: dict[str, Any]) -> None:
    daemon, inference, store = found["daemon"], found["inference"], found["store"]
    state = "ready" if daemon["ready"] else "starting"
    out.print(Text(f"reef {daemon['version']} {state} at {daemon['url']}, up {ago(time.time() - daemon['uptime_s'])}"))
    out.print(Text(f"  home     {daemon['home']}"))
    upstream = inference["upstream"]
    where = f" at {upstream['url']}" if upstream else ""
    out.print(Text(f"  answers  {inference['backend']} {inference['model'] or '(each call names its model)'}{where}"))
    if upstream and (failure := upstream["last_failure"]):
        said = f"{failure['code']} {ago(failure['at'])} ago: {failure['message']}"
        out.print(Text(f"  FAILING  {said}", "bold red") if upstream["failing"] else Text(f"  failed   {said}", "dim"))
        if upstream["failing"]:
            out.print(Text(here(f"    try: {upstream_fix(failure['code'])}"), "dim"))
    out.print(Text(f"  records  {store['records']:,} in {size(store['bytes'])}"))
    if store["degraded"]:
        out.print(
            Text(f"  DEGRADED {store['unrecorded']} answers without a receipt: {store['degraded']}", style="bold red")
        )
    out.print()
    table(
        ("scenario", "recipe", "serves", "step", "batch", "state", "waits for"),
        (
            (
                row["name"],
                row["recipe"],
                row["release_id"] or "-",
                row["step"],
                f"{row['batch']['have']}/{row['batch']['need']}" if row["batch"]["need"] else "-",
                row["state"],
                here(row["detail"] or row["waiting_for"]),
            )
            for row in found["scenarios"]
        ),
        empty='no scenario yet; make a call: reef call "hello"',
    )
    for row in found["scenarios"]:
        if row["reasons"]:
            said = ", ".join(f"{count} {code}" for code, count in row["reasons"].items())
            out.print(Text(f"  {row['name']}: reports that do not train: {said}", style="dim"))
        if budget := row["evolving"].get("error_budget"):
            out.print(Text(f"  {row['name']}: {_spent(budget)}", style="dim"))
        if unboxed := row["evolving"].get("unboxed"):
            out.print(Text(f"  {row['name']}: episodes run without a sandbox: {unboxed}", style="yellow"))
        if drafts := row["evolving"].get("drafts"):
            where = Path(daemon["home"]) / "drafts" / row["name"]
            out.print(Text(f"  {row['name']}: drafts of tasks that need a check: {drafts} in {where}", style="dim"))


def _spent(budget: dict[str, Any]) -> str:
    """An error budget in one line."""
    done = f"{budget['used']:.0%} used by {counted(budget['tests'], 'test')}, {budget['published']} published"
    return f"error budget (alpha {budget['alpha']:g}): {done}; the next test has level {budget['next_level']:.2g}"
