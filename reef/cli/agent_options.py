"""What the commands about agents share: their options, the daemon they talk to, what is said of an install."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from reef.cli.common import client_of
from reef.cli.complete import complete_agents, complete_scenarios
from reef.client import ReefClient, discovery
from reef.errors import BadRequest

if TYPE_CHECKING:
    from reef.harness.place import Place

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", help="See: reef harness adapters.", autocompletion=complete_agents)
]
ScenarioOption = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        "-s",
        envvar="REEF_SCENARIO",
        help="Scenario; default: the deployment's.",
        show_default=False,
        autocompletion=complete_scenarios,
    ),
]
FeedbackOption = Annotated[str | None, typer.Option(help="What was good or wrong, in words.")]


def agent_command(agent: str) -> str:
    """What is typed to run an agent."""
    return f"reef-{agent}" if shutil.which(f"reef-{agent}") else f"reef agent {agent}"


def start_command(agent: str) -> str:
    beside = Path(sys.executable).with_name(f"reef-{agent}")
    return (
        f"reef-{agent}" if shutil.which(f"reef-{agent}") else str(beside) if beside.exists() else agent_command(agent)
    )


def daemon_of(url: str | None, home: Path | None) -> ReefClient:
    """The daemon to install from: the one at ``url`` with the token of the environment, or the one of a state directory."""
    if url is None:
        return client_of(home)
    token = os.environ.get("REEF_TOKEN", "")
    if not token:
        raise BadRequest("REEF_TOKEN is not set", hint="export REEF_TOKEN=... (the daemon's access token)")
    return ReefClient(url, token, actor="cli")


def home_at(url: str, near: Path) -> str | None:
    """The state directory of the daemon at ``url``, if it is ``near``; by its port, because this machine has many names."""
    found = discovery(near)
    same = found is not None and urlsplit(str(found["url"])).port == urlsplit(url).port
    return str(near) if same else None


def token_of(client: ReefClient) -> str:
    return str(client.http.headers["x-reef-token"])


def installed_view(place: Place) -> dict[str, Any]:
    from reef.cli import served

    manifest, kept = place.read(served.installs.MANIFEST) or {}, served.remembered(place)
    return {
        "agent": place.adapter,
        "version": manifest.get("program") or None,
        "scenario": place.scenario,
        "release_id": manifest.get("release_id"),
        "content_id": manifest.get("content_id"),
        "url": kept.get("url"),
        "model": kept.get("model"),
        "folder": str(place.root),
    }
