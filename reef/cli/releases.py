"""releases, rollback, promote, reject, pause, resume, step: the version chain and what people do to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from reef.cli.common import (
    HomeOption,
    JsonOption,
    ReleaseArgument,
    ScenarioOption,
    YesOption,
    ago,
    client_of,
    confirm,
    cut,
    goes_on,
    out,
    print_json,
    say,
    scenario_of,
    size,
    table,
    talk,
)
from reef.cli.complete import complete_releases
from reef.cli.pager import paged
from reef.cli.place import here
from reef.client import ReefClient
from reef.errors import Conflict

_POLL_S = 0.5
releases_app = typer.Typer(no_args_is_help=False, help="The chain of versions of a scenario.")

_DIFF = {"+": "green", "-": "red", "@": "cyan"}
_SYMBOLS = {"serving": "●", "published": "○", "held": "◌", "rejected": "✗", "rolled_back": "↶"}


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.add_typer(releases_app, name="releases")
    for command in (rollback, promote, reject, pause, resume, step):
        app.command()(command)
    for command in (rollback, promote, reject):
        releases_app.command()(command)


@releases_app.callback(invoke_without_command=True)
def releases_root(
    context: typer.Context, scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """List the chain, newest first."""
    if not goes_on(context):
        releases_list(scenario, home, as_json)


@releases_app.command("list")
@paged
def releases_list(scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the chain, newest first; the same as reef releases. Example: reef releases"""
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        rows = client.releases(name)
    if as_json:
        print_json("releases", rows)
        return
    table(
        ("", "release", "from", "step", "age", "size", "reward", "state", "why"),
        (
            (
                _SYMBOLS[row["state"]],
                row["release_id"],
                row["parent"] or "-",
                row["step"],
                ago(row["created_at"]),
                size(row["size_bytes"]) if row["size_bytes"] else "-",  # nobody measured the first one
                _reward(row),
                row["state"],
                cut(row["verdict"].get("reason", "the base model") if row["verdict"] else "the first one", 40),
            )
            for row in rows
        ),
        empty=f"scenario {name} has no releases: its recipe updates nothing",
    )


@releases_app.command("show")
@paged
def releases_show(
    release_id: ReleaseArgument, scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """One release: verdict, metrics and the records it learned from. Example: reef releases show r3"""
    with client_of(home) as client:
        found = client.release(scenario_of(client, scenario), release_id)
    if as_json:
        print_json("release", found)
        return
    for key in ("release_id", "scenario", "state", "parent", "restored_from", "step", "content_id"):
        out.print(Text(f"{key:14} {found[key] if found[key] is not None else '-'}"))
    for key, value in found["metrics"].items():
        out.print(Text(f"  {key:22} {value:.4g}" if isinstance(value, float) else f"  {key:22} {value}"))
    if found["verdict"]:
        out.print(Text(f"{'verdict':14} {found['verdict'].get('decision')}: {found['verdict'].get('reason')}"))
    out.print(Text(f"{'records':14} {len(found['records'])}"))
    for record_id in found["records"][:10]:
        out.print(Text(here(f"  reef records show {record_id}"), "dim"))


@releases_app.command("diff")
@paged
def releases_diff(
    release_id: ReleaseArgument,
    to: Annotated[
        str | None,
        typer.Argument(help="Another release; default: the one it was made from.", autocompletion=complete_releases),
    ] = None,
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What changed in a release since another one: entries of a harness, or what a manifest says of weights.

    Examples: reef releases diff r3 | reef releases diff r3 r1
    """
    with client_of(home) as client:
        found = client.diff(scenario_of(client, scenario), release_id, to)
    if as_json:
        print_json("diff", found)
    elif found["diff"]:
        for line in found["diff"].splitlines():
            out.print(Text(line, _DIFF.get(line[:1], "")))
    else:
        before = found["from"]["release_id"] if found["from"] else "nothing"
        say(f"no difference between {before} and {found['to']['release_id']}")


def rollback(
    to: Annotated[
        str | None,
        typer.Argument(help="Release to go back to; default: the parent.", autocompletion=complete_releases),
    ] = None,
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve an earlier release again, its weights exactly as they were. Example: reef rollback r3"""
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        confirm(f"serve {restorable(client, name, to)} of {name} again?", yes)
        found = client.act(name, "rollback", {"to": to} if to else {})
    _acted(
        "rollback", found, as_json, f"{found['release_id']} restores {found['restored_from']} and is {found['state']}"
    )


def promote(
    release_id: ReleaseArgument,
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve a release that waits for review. Example: reef promote r4"""
    _decide("promote", f"serve {release_id}", release_id, scenario, home, yes, as_json)


def reject(
    release_id: ReleaseArgument,
    scenario: ScenarioOption = None,
    home: HomeOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Refuse a release that waits for review. Example: reef reject r4"""
    _decide("reject", f"reject {release_id} for good", release_id, scenario, home, yes, as_json)


def pause(scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Stop training a scenario; calls go on being answered. Example: reef pause"""
    _simple("pause", scenario, home, as_json, "training is paused; go on with: reef resume")


def resume(scenario: ScenarioOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Go on training a scenario. Example: reef resume"""
    _simple("resume", scenario, home, as_json, "training goes on")


def step(
    scenario: ScenarioOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it is over; exits 1 when it cannot be made.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train now on what is complete, without waiting for a full batch. Example: reef step --wait"""
    if not wait:
        _simple("step", scenario, home, as_json, "a step has been asked for; watch it with: reef releases")
        return
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        before = {row["step_id"] for row in client.get(f"/reef/scenarios/{name}/steps")["steps"]}
        if client.get(f"/reef/scenarios/{name}")["state"] == "idle":
            client.act(name, "step")
        made = _waited(client, name, before)
    if as_json:
        print_json("step", made)
    else:
        said = made["release_id"] or made["reason"] or ""
        out.print(
            Text(
                f"{made['outcome']} {said}: {made['verdict'].get('reason', '') if made['verdict'] else ''}".rstrip(": ")
            )
        )
    if made["outcome"] == "refused":
        raise typer.Exit(1)


def restorable(client: ReefClient, name: str, to: str | None) -> str:
    """The release that a rollback restores; what cannot be is said before anything is asked."""
    if to is not None:
        return str(client.release(name, to)["release_id"])
    head = client.get(f"/reef/scenarios/{name}")["release_id"]
    if head is None:
        raise Conflict(f"scenario {name!r} has no releases", hint="its recipe updates nothing")
    origin = client.release(name, head)
    while origin["restored_from"] is not None:  # back from a rollback means further back
        origin = client.release(name, origin["restored_from"])
    if origin["parent"] is None:
        said = f"{origin['release_id']} is the first release of {name}: there is none before it"
        raise Conflict(said, hint="see the chain: reef releases")
    return str(origin["parent"])


def _waited(client: ReefClient, name: str, before: set[str]) -> dict[str, Any]:
    """The next step that ends; raises Conflict when it stands still, with what it waits for."""
    from rich.markup import escape
    from rich.status import Status

    with Status("a step is being made", console=talk) as shown:
        while True:
            rows = client.get(f"/reef/scenarios/{name}/steps")["steps"]
            new = [row for row in rows if row["step_id"] not in before]
            if new:
                return dict(new[-1])
            view = client.get(f"/reef/scenarios/{name}")
            if view["state"] in ("blocked", "failed", "held", "paused"):
                said = view["detail"] or view["state"]
                raise Conflict(f"the step of {name} stands still: {said}", hint="mend that; it goes on by itself")
            shown.update(escape(": ".join(filter(None, ("a step is being made", view["detail"])))))
            time.sleep(_POLL_S)


def _decide(
    action: str, question: str, release_id: str, scenario: str | None, home: Path | None, yes: bool, as_json: bool
) -> None:
    with client_of(home) as client:
        name = scenario_of(client, scenario)
        client.release(name, release_id)
        confirm(f"{question} in {name}?", yes)
        found = client.act(name, action, {"release_id": release_id})
    _acted(action, found, as_json, f"{found['release_id']} is {found['state']}")


def _simple(action: str, scenario: str | None, home: Path | None, as_json: bool, said: str) -> None:
    with client_of(home) as client:
        found = client.act(scenario_of(client, scenario), action)
    _acted(action, found, as_json, said)


def _acted(kind: str, found: dict[str, Any], as_json: bool, said: str) -> None:
    if as_json:
        print_json(kind, found)
    else:
        say(said)


def _reward(row: dict[str, Any]) -> str:
    reward = row["metrics"].get("reward_mean")
    return "-" if reward is None else f"{reward:.2f}"
