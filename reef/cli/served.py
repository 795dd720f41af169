"""What installing and the agents' own commands share: reach the daemon of an install, fetch its harness, bring it in.

Loaded by a command when it runs, with all of reef.harness that commands need: most commands need none of it.
An install remembers its daemon; one that now listens elsewhere is found by its state directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reef.cli.bar import bar
from reef.cli.common import say, talk
from reef.client import ReefClient, discovery
from reef.errors import BadRequest, DaemonUnreachable, ReefError, Unauthorized
from reef.harness import install as installs
from reef.harness.adapters import Adapter, adapter, adapters, readable
from reef.harness.install import BINDING, Done, Served, sync
from reef.harness.place import Place, agents_dir, chosen, installed
from reef.harness.program import ensure, remove_programs, start_of
from reef.harness.render import Binding
from reef.harness.tree import FILE, Tree, diff

__all__ = [
    "BINDING",
    "FILE",
    "Binding",
    "Place",
    "Tree",
    "adapter",
    "adapters",
    "agents_dir",
    "bring",
    "bring_program",
    "chosen",
    "diff",
    "fetch",
    "installed",
    "installs",
    "model_of",
    "reach",
    "readable",
    "remembered",
    "remove_programs",
    "say_done",
    "start_of",
]

_REACH_S = 10.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A harness as the daemon serves it; ``model`` is what the daemon answers with, None where each call names one."""

    served: Served
    scenario: str
    model: str | None


def fetch(client: ReefClient, scenario: str | None, session: str | None = None) -> Fetched:
    """The release that ``scenario`` (None: the deployment's default) is served now."""
    found = client.get("/reef/harness", scenario=scenario, session=session)
    tree = Tree.from_dict({"version": found.get("version"), "entries": found.get("entries")})
    return Fetched(Served(str(found["release_id"]), tree), str(found["scenario"]), found.get("model"))


def remembered(place: Place) -> dict[str, Any]:
    """What the install wrote about its daemon."""
    return place.read(BINDING) or {}


def reach(place: Place) -> tuple[ReefClient, Binding]:
    """A client of the install's daemon, which answers; raises DaemonUnreachable with what to type."""
    kept = remembered(place)
    try:
        binding = Binding(*(str(kept[name]) for name in ("url", "token", "scenario", "model")))
    except KeyError:
        again = f"reef harness install {place.adapter}"
        raise DaemonUnreachable(f"the install in {place.root} does not say where its daemon is", hint=again) from None
    home = Path(kept["home"]) if kept.get("home") else None
    given, known = os.environ.get("REEF_TOKEN"), _token_of(home)
    for url in dict.fromkeys((binding.url, _url_of(home) or binding.url)):
        tried = replace(binding, url=url, token=given or known or binding.token)
        client = ReefClient(tried.url, tried.token, scenario=place.scenario, actor=place.adapter, timeout_s=_REACH_S)
        if client.ready():
            return client, tried
        client.close()
    where = f" --home {kept['home']}" if kept.get("home") else ""
    raise DaemonUnreachable(f"no daemon answers at {binding.url}", hint=f"start it with: reef up{where}")


def _url_of(home: Path | None) -> str | None:
    found = discovery(home) if home is not None else None
    return str(found["url"]) if found is not None else None


def _token_of(home: Path | None) -> str | None:
    """The token in a state directory, which may have changed since the install."""
    try:
        return (home / "token").read_text(encoding="utf-8", errors="replace").strip() if home is not None else None
    except OSError:
        return None


def bring(place: Place, adapter: Adapter, client: ReefClient, binding: Binding, session: str | None = None) -> Done:
    """Make the install what its daemon serves now."""
    try:
        found = fetch(client, place.scenario, session)
    except ReefError as error:
        if error.code == "unauthorized":
            hint = f"export REEF_TOKEN=... (the daemon's token), or: reef harness install {place.adapter}"
            said = f"the daemon at {binding.url} takes another token"
            raise Unauthorized(said, hint=hint, code="other_token") from error
        raise
    model = found.model if found.model is not None and not remembered(place).get("own_model") else binding.model
    return sync(place, adapter, found.served, replace(binding, model=model))


def bring_program(agents: Path, one: Adapter) -> bool:
    """Install what is missing of the agent's program, with a bar on a terminal and a line elsewhere; True when it was."""
    said: set[str] = set()
    with bar() as move:

        def progress(stage: str, done: int, total: int | None) -> None:
            if not talk.is_terminal and stage not in said:
                say(f"{stage} ({(total or 0) // 10**6} MB)")
            said.add(stage)
            move(stage, done, total)

        return ensure(agents, one, progress)


def model_of(given: str | None, found: Fetched) -> str:
    """The model that the agent asks for; raises BadRequest where nobody names one."""
    model = given or found.model
    if model is None:
        raise BadRequest(
            "the daemon names no model, and the agent's configuration needs one",
            hint="start the daemon with REEF_UPSTREAM_MODEL, or add: --model ID",
            field="model",
        )
    return model


def say_done(done: Done, place: Place) -> None:
    """What was changed, in a few lines on stderr."""
    for path in done.kept:
        beside = (place.config / f"{path}.reef-new").exists()
        say(f"  kept your {path}" + (f"; the new one lies beside it as {path}.reef-new" if beside else ""))
    for label in done.left_out:
        say(f"  left out {label}: {place.adapter} has no place for it", style="dim")
