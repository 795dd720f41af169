"""GET /reef/harness...: the tree a scenario serves, the adapters, and a script that installs one of them.

Knows nothing of how an agent is installed: the script calls the command that does. No answer holds the token.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reef.core.artifacts import Release
from reef.core.reports import check_name, check_session
from reef.daemon.services import Services
from reef.daemon.wire import json_response
from reef.errors import BadRequest, Conflict
from reef.harness.adapters import Adapter, adapter, adapters, readable
from reef.harness.tree import Tree
from reef.scenario import Scenario
from reef.train.harness_runtime import read_tree
from reef.train.watch import share_of

log = logging.getLogger("reef.daemon")


async def harness(request: Request) -> Response:
    """What a session of ``?scenario=`` is served, or ``?release=`` of it, with its tree; a new name creates the scenario."""
    services: Services = request.app.state.services
    session = check_session(request.query_params.get("session"), "session")
    named = check_name(request.query_params.get("release") or None, "release")
    scenario = await _scenario(request)
    release, tree = await asyncio.to_thread(_served, services, scenario, session, named)
    return json_response(
        {
            "scenario": scenario.name,
            "release_id": release.release_id,
            "content_id": release.content_id,
            "model": _model(services),
            **tree.as_dict(),
        }
    )


async def list_adapters(request: Request) -> Response:
    """Every adapter with its program."""
    good, bad = await asyncio.to_thread(readable)
    for error in bad:
        log.warning("an adapter is left out: %s", error.message)
    return json_response({"adapters": [_adapter_view(one) for one in good]})


async def install(request: Request) -> Response:
    """A bash script that installs ``?adapter=`` for ``?scenario=`` from this daemon: for ``curl ... | bash``."""
    services: Services = request.app.state.services
    name = request.query_params.get("adapter")
    if not name:
        raise BadRequest("name the agent: ?adapter=", hint=f"one of {', '.join(adapters())}", field="adapter")
    chosen = await asyncio.to_thread(adapter, name)
    scenario = await _scenario(request)
    return Response(_script(_called(request), services.home, scenario.name, chosen), media_type="text/x-shellscript")


async def _scenario(request: Request) -> Scenario:
    """The scenario whose harness is asked for; raises Conflict where it has none, with the way forward."""
    services: Services = request.app.state.services
    if not services.ready:
        raise services.not_ready()
    name = (
        check_name(request.query_params.get("scenario") or None, "scenario") or services.default_scenario or "harness"
    )
    recipe = services.scenarios.recipe
    if (surface := recipe.build_surface().kind) != "harness":
        raise Conflict(
            f"recipe {recipe.name} has no harness: it updates {surface}",
            hint="start the daemon with a recipe that has one: reef up --recipe harness",
            code="no_harness",
        )
    scenario = services.scenarios.opened.get(name) or await services.scenarios.open(name)
    row = await asyncio.to_thread(services.chain.scenario, name)
    if row.head is None or row.surface != "harness":  # made by a daemon with another recipe
        raise Conflict(
            f"scenario {name!r} has no harness: it was made by recipe {row.recipe}",
            hint="use another scenario name",
            code="no_harness",
        )
    return scenario


def _served(services: Services, scenario: Scenario, session: str | None, named: str | None) -> tuple[Release, Tree]:
    """The head, or for its share of the sessions the canary; a session gets the same one every time it asks."""
    release = services.chain.head(scenario.name) if named is None else services.chain.get(scenario.name, named)
    assert release is not None
    held = services.chain.held(scenario.name)
    if named is None and held is not None and session is not None and held.parent == release.release_id:
        draw = hashlib.sha256(f"{scenario.name}/{held.content_id}/{session}".encode()).digest()
        if int.from_bytes(draw[:6], "big") / 2**48 < share_of(held.verdict):
            release = held
    return release, read_tree(services.home, release.content_id)


def _model(services: Services) -> str | None:
    service = services.config.service
    if services.engine is not None and service.model_path is not None:
        return service.model_path.name
    return service.upstream_model


def _adapter_view(one: Adapter) -> dict[str, Any]:
    return {
        "name": one.name,
        "summary": one.summary,
        "package": one.program.package or None,
        "version": one.program.version or None,
        "node": one.program.node or None,
        "size_mb": one.program.size_mb,
        "kinds": sorted({*one.files, "config"}),
    }


_SCRIPT = """#!/usr/bin/env bash
# Installs {summary} for Reef, into Reef's own directory. The token is read from REEF_TOKEN and is not in this script.
set -euo pipefail
main() {{
  if [ -z "${{REEF_TOKEN:-}}" ]; then
    echo "error: REEF_TOKEN is not set" >&2
    echo "  try: export REEF_TOKEN=... (the token this script was fetched with), then run it again" >&2
    exit 1
  fi
  export REEF_TOKEN
  local python={python} reef
  if [ -x "$python" ] && "$python" -c 'import reef' >/dev/null 2>&1; then
    reef=("$python" -m reef.cli.main)
  elif command -v reef >/dev/null 2>&1; then
    reef=(reef)
  else
    echo "error: Reef's command is not on this machine" >&2
    echo "  try: pip install reefd, then run this again" >&2
    exit 1
  fi
  exec "${{reef[@]}}" harness install {adapter} --scenario {scenario} --url {url} --home {home} </dev/null
}}
main
"""


def _called(request: Request) -> str:
    """The daemon's address as the caller knows it: the one it listens on may mean nothing on another machine."""
    return f"{request.url.scheme}://{request.headers['host']}"


def _script(url: str, home: Path, scenario: str, chosen: Adapter) -> str:
    """All in one function, so that a script cut short by the network does nothing.

    The state directory is where the install looks for the daemon once it listens elsewhere.
    """
    values = {"url": url, "home": str(home.absolute()), "python": sys.executable}
    values |= {"scenario": scenario, "adapter": chosen.name}
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    return _SCRIPT.format(summary=" ".join(chosen.summary.split()), **quoted)


routes = [
    Route("/reef/harness", harness),
    Route("/reef/harness/adapters", list_adapters),
    Route("/reef/harness/install", install),
]
