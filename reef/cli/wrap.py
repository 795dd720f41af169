"""wrap, unwrap: point a person's own copy of an agent at Reef, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from reef.cli.agent_options import AgentArgument, daemon_of, token_of
from reef.cli.common import HomeOption, JsonOption, YesOption, confirm, print_json, say, talk
from reef.core.reports import check_name
from reef.errors import BadRequest


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(wrap)
    app.command()(unwrap)


def wrap(
    agent: AgentArgument,
    scenario: Annotated[
        str, typer.Option("--scenario", "-s", envvar="REEF_SCENARIO", help="Scenario of its calls.")
    ] = "default",
    url: Annotated[
        str | None, typer.Option("--url", help="The daemon's address; the token is then REEF_TOKEN.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model id it asks for; default: the daemon's.")] = None,
    own_login: Annotated[
        bool, typer.Option("--own-login", help="It goes on logging in to its provider, through Reef.")
    ] = False,
    home: HomeOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let your own copy of an agent make its calls through Reef. Its harness stays yours. Example: reef wrap claude"""
    from reef.cli.served import Binding, adapter, agents_dir
    from reef.harness import wrap as wraps

    one = adapter(agent)
    named = check_name(scenario, "scenario") or "default"
    with daemon_of(url, home) as client:
        found = client.status()["inference"]["model"]
        binding = Binding(client.url, token_of(client), named, model or found or "")
    if not binding.model and one.wrap.needs_model:
        raise BadRequest("the daemon names no model", hint="add: --model ID", field="model")
    changes = [one for one in wraps.plan(one, binding, Path.home(), own_login=own_login) if one.before != one.after]
    if not changes:
        say(f"{agent} makes its calls through Reef already")
    elif wraps.wrapped(agents_dir(), agent):
        wraps.wrap(agents_dir(), one, changes)  # says that it is wrapped, for something else
    else:
        for change in changes:
            talk.print(Text(change.diff(binding.token)))
        confirm(f"change {', '.join(str(change.path) for change in changes)}?", yes)
        wraps.wrap(agents_dir(), one, changes)
    if as_json:
        print_json(
            "wrap", {"agent": agent, "url": binding.url, "scenario": named, "files": [str(o.path) for o in changes]}
        )
    elif changes:
        say(f"{agent} makes its calls through {binding.url} now, scenario {named}; undo it with: reef unwrap {agent}")


def unwrap(agent: AgentArgument, as_json: JsonOption = False) -> None:
    """Take out what reef wrap put in: every byte is as it was, or, where you changed the file since, only ours go.

    Example: reef unwrap claude
    """
    from reef.cli.served import agents_dir
    from reef.harness import wrap as wraps

    said = wraps.unwrap(agents_dir(), agent)
    if as_json:
        print_json("unwrap", {"agent": agent, "files": said})
        return
    for line in said:
        say(line)
