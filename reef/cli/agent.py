"""reef-pi, reef-claude, ...: run an agent on the harness that is served now. Its input, output and exit code are its own.

A few words are Reef's (``reef-pi report``); everything else is the agent's, and ``reef-pi -- WORD`` always is.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

from reef.cli.common import say, show_error
from reef.cli.served import bring, bring_program, reach
from reef.client import ReefClient
from reef.errors import BadRequest, ReefError
from reef.harness.adapters import Adapter, adapter
from reef.harness.install import BINDING, MANIFEST, RUNS, Done
from reef.harness.place import Place, agents_dir, chosen
from reef.harness.program import NotInstalled, start_of
from reef.harness.render import Binding, environment
from reef.harness.tree import FILE, Tree

OWN = ("diff", "harness", "report", "rollback", "status", "uninstall", "update", "versions")
_RUNS_KEPT = 200


def main() -> None:
    """Entry point of ``reef-AGENT``: the name says which."""
    sys.exit(run(Path(sys.argv[0]).name.removeprefix("reef-"), sys.argv[1:]))


def run(name: str, words: list[str]) -> int:
    """Run an agent with ``words``, or one of Reef's own commands about it; returns only where no agent was started."""
    if words and words[0] in OWN:
        command = "ask" if words[0] == "harness" else words[0]
        sys.argv = ["reef", "harness", command, name, *words[1:]]
        from reef.cli.main import main as reef

        reef()
    try:
        _become(name, words[1:] if words[:1] == ["--"] else words)
    except ReefError as error:
        show_error(error, as_json=False)
        return error.exit_code
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        show_error(ReefError(said, hint=f"see: reef-{name} status"), as_json=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 1


def _become(name: str, words: list[str]) -> None:
    """Bring the install to what is served, remember the run, and turn this process into the agent."""
    one = adapter(name)
    place = chosen(agents_dir(), name, os.environ.get("REEF_SCENARIO"))
    try:
        start = start_of(place.agents, one)
    except NotInstalled:  # the first run after an upgrade of Reef, which has another version of it
        bring_program(place.agents, one)
        start = start_of(place.agents, one)
    session = str(uuid.uuid4())
    client, binding = reach(place)
    with client:
        done = _current(place, one, client, binding, session)
    if done.before != done.release_id:
        say(f"reef: {name} is on {done.release_id} now (was {done.before})")
    for path in done.kept if done.changed else ():
        say(f"reef: kept your {path}")
    if words[:1] in (["-h"], ["--help"]):
        say(f"reef: {', '.join(OWN)} are Reef's own commands (reef-{name} status --help); what follows is {name}'s")
    kept = place.read(BINDING) or {}
    bound = Binding(binding.url, binding.token, place.scenario, str(kept["model"]))
    launch = environment(
        Tree.from_dict(place.read(FILE)), one, bound, session=session, release=done.release_id, folders=_folders(place)
    )
    environ = {key: value for key, value in os.environ.items() if key not in (*launch.unset, "REEF_TOKEN")}
    environ |= launch.env
    for key in ("NO_PROXY", "no_proxy"):  # the agent's calls to a daemon on this machine must not go out by a proxy
        environ[key] = ",".join(part for part in (environ.get(key), "127.0.0.1,localhost,::1") if part)
    if os.path.realpath(environ.get("PWD", "")) != os.path.realpath(os.getcwd()):  # some agents believe it
        environ["PWD"] = os.getcwd()
    _remember(place, session, done.release_id)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(start[0], [*start, *launch.arguments, *words], environ)


def _current(place: Place, one: Adapter, client: ReefClient, binding: Binding, session: str) -> Done:
    """What is served, brought in; a release that this agent cannot take does not keep it from running on the last one."""
    try:
        return bring(place, one, client, binding, session)
    except BadRequest as error:
        release_id = (place.read(MANIFEST) or {}).get("release_id")
        if release_id is None:
            raise
        say(f"reef: staying on {release_id}: {error.message}")
        return Done(release_id, release_id)


def _folders(place: Place) -> dict[str, str]:
    for folder in (place.config, place.data):
        folder.mkdir(mode=0o700, exist_ok=True)
    return {"config": str(place.config), "data": str(place.data)}


def _remember(place: Place, session: str, release_id: str) -> None:
    """Keep which run was the last one in this folder: that is what a report is about."""
    with place.locked():
        runs = place.read(RUNS) or {}
        runs[os.path.realpath(os.getcwd())] = {"session": session, "release_id": release_id, "at": time.time()}
        newest = sorted(runs, key=lambda folder: float(runs[folder]["at"]))[-_RUNS_KEPT:]
        place.write(RUNS, {folder: runs[folder] for folder in newest})


if __name__ == "__main__":
    sys.exit(run(sys.argv[1] if sys.argv[1:] else "", sys.argv[2:]))
