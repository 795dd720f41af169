"""Values for shell completion: scenarios, releases, records, agents, recipes, keys. Silent where there are none.

What a daemon must tell it has 0.2 seconds for. Called by the shell, through the arguments that name these functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import typer

from reef.cli.place import home_of
from reef.client import ReefClient
from reef.errors import ReefError

_WAIT_S = 0.2
_RECORDS = 50


def complete_scenarios(context: typer.Context, incomplete: str) -> list[str]:
    """Names of scenarios."""
    return _asked(context, incomplete, _scenarios)


def complete_releases(context: typer.Context, incomplete: str) -> list[str]:
    """Releases of the scenario that was named, or of the only one; the newest first."""
    return _asked(context, incomplete, lambda client: _of_scenario(context, client, "releases", "release_id"))


def complete_records(context: typer.Context, incomplete: str) -> list[str]:
    """The newest records."""
    return _asked(context, incomplete, lambda client: _of_scenario(context, client, "records", "agent_record_id"))


def complete_what(context: typer.Context, incomplete: str) -> list[str]:
    """Releases and records."""
    return complete_releases(context, incomplete) + complete_records(context, incomplete)


def complete_agents(incomplete: str) -> list[str]:
    """Names of adapters."""
    from reef.harness.adapters import adapters

    return _begin(adapters(), incomplete)


def complete_recipes(incomplete: str) -> list[str]:
    """Kinds of recipes."""
    from reef.daemon.local import recipe_names

    return _begin(recipe_names(), incomplete)


def complete_keys(incomplete: str) -> list[str]:
    """Keys of the configuration."""
    from reef.daemon.local import key_rows

    return _begin(key_rows(), incomplete)


def _scenarios(client: ReefClient) -> list[str]:
    return [str(row["name"]) for row in client.get("/reef/scenarios")["scenarios"]]


def _of_scenario(context: typer.Context, client: ReefClient, rows: str, key: str) -> list[str]:
    named = context.params.get("scenario") or os.environ.get("REEF_SCENARIO")
    names = [named] if named else _scenarios(client)
    if len(names) != 1:
        return []
    found = client.records(names[0], limit=_RECORDS) if rows == "records" else client.releases(names[0])
    return [str(row[key]) for row in found]


def _asked(context: typer.Context, incomplete: str, ask: Callable[[ReefClient], list[str]]) -> list[str]:
    """What the daemon says at once; nothing where none answers, none is readable, or the shell was given nonsense."""
    try:
        with ReefClient.from_home(home_of(context.params.get("home")), timeout_s=_WAIT_S) as client:
            return _begin(ask(client), incomplete)
    except (ReefError, OSError, ValueError, KeyError, TypeError):
        return []


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
