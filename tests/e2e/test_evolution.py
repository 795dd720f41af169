"""The readme's harness path with its own deployment: serve, install through curl, run, report, and the next run is better.

The agents are the real programs; the model is scripted: it solves a task only when the harness tells it to look at every case.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reef.client import ReefClient
from reef.evolve.tasks import read_tasks
from reef.launch import stop
from tests.cli.test_agents import npm_cache, ok
from tests.cli.test_cli import refused, schema
from tests.evolve.world import edits, is_proposer, prompt_of
from tests.faults.world import ROOT
from tests.harness.model import Thinker, run_in_shell
from tests.harness.world import World, fingerprint, npm_reaches, odd_home
from tests.support import Daemon, eventually, on_thread

__all__ = ["npm_cache"]  # the fixture

EXAMPLE = ROOT / "examples" / "harness_evolve"
PROGRAMS = {
    "minimal": (None, ("-p",)),
    "pi": ("@earendil-works/pi-coding-agent@1.6.0", ("-p",)),
    "claude": ("@anthropic-ai/claude-code@2.1.332", ("--dangerously-skip-permissions", "-p")),
    "codex": ("@openai/codex@0.171.0", ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")),
    "opencode": ("opencode-ai@1.18.33", ("run", "--auto")),
}
SOLVED = {
    "allowed(header)": ("auth.py", """
def allowed(header):
    parts = (header or "").split()
    return len(parts) == 2 and parts[0].lower() == "bearer" and parts[1] == "reef"
"""),
    "rows(text)": ("table.py", """
import csv, io
def rows(text):
    return list(csv.reader(io.StringIO(text, newline="")))
"""),
    "slug(title)": ("slug.py", """
import re, unicodedata
def slug(title):
    plain = unicodedata.normalize("NFKD", title.replace("ß", "ss")).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", plain)
    found = ""
    for word in words:
        longer = f"{found}-{word}" if found else word
        if len(longer) > 40:
            return found or word[:40]
        found = longer
    return found or "untitled"
"""),
}  # fmt: skip
SKILL = "---\nname: cases\ndescription: before any change of code\n---\nList every case, MARK-cases, and handle it.\n"


def mind(body: Any) -> dict[str, Any]:
    """Proposes the skill; solves a task of the example where the skill is; else edits nothing."""
    if is_proposer(body):
        return edits(("skill", "cases", SKILL), ("rules", "cases", "Follow the skill cases: MARK-cases."))
    text = prompt_of(body)
    solved = next((found for mark, found in SOLVED.items() if mark in text), None)
    command = "echo looked > looked.txt"
    if solved is not None and "MARK-cases" in text:
        command = f"echo {base64.b64encode(solved[1].encode()).decode()} | base64 -d > {solved[0]}"
    return run_in_shell(body, command) or {"content": "done" + (" MARK-cases" if "MARK-cases" in text else "")}


@contextmanager
def deployed(tmp_path: Path, cache: Path, agent: str) -> Iterator[World]:
    """``reef up -c examples/harness_evolve/deployment.yaml`` from the checkout, on a free port, for another agent."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    odd_home(home)
    yaml = (EXAMPLE / "deployment.yaml").read_text(encoding="utf-8")
    assert "port: 8901" in yaml and "token: reef-local" in yaml and "${REEF_UPSTREAM_MODEL}" in yaml
    file = tmp_path / "deployment.yaml"
    file.write_text(yaml.replace("adapter: pi", f"adapter: {agent}"), encoding="utf-8")
    with on_thread(Thinker(mind)) as thinker:
        one = Daemon(home / ".local/share/reef", {})
        here = World(home, project, one, thinker, cache)  # type: ignore[arg-type]
        command = [sys.executable, "-m", "reef.cli.main", "up", "-c", str(file), "--port", "0"]
        environ = {"REEF_UPSTREAM_URL": thinker.url, "REEF_UPSTREAM_API": "chat"}
        missing = World(home, ROOT, one, thinker, cache)  # type: ignore[arg-type]
        (home / ".local/share/reef").mkdir()
        (home / ".local/share/reef/token").write_text("x")
        refused(missing.run(*command, **environ), 2, "REEF_UPSTREAM_MODEL")
        (home / ".local/share/reef/token").unlink()
        started = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
            env={**_environ(here), **environ, "REEF_UPSTREAM_MODEL": "thinker"},
        )  # fmt: skip
        assert started.returncode == 0, started.stderr
        one.url = str(json.loads((one.home / "daemon.json").read_text())["url"])
        try:
            yield here
        finally:
            stop(one.home, 60)


def _environ(here: World) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REEF_", "XDG_"))}
    return {**kept, "HOME": str(here.home), "PYTHONPATH": str(ROOT), "REEF_NPM_CACHE": str(here.cache), "NO_COLOR": "1"}


def story(tmp_path: Path, cache: Path, agent: str) -> None:
    package, words = PROGRAMS[agent]
    if package is not None and (why := npm_reaches(package, cache)) is not None:
        pytest.skip(why)
    with deployed(tmp_path, cache, agent) as here:
        before = fingerprint(here.home)
        token = {"REEF_TOKEN": "reef-local", "IS_SANDBOX": "1"}
        ok(here.curl_install(agent, **token))
        ran = ok(here.agent(agent, *words, "fix the failing test in auth.py", **token))
        assert (here.project / "looked.txt").read_text() == "looked\n" and "MARK-cases" not in ran.out
        ok(here.agent(agent, "report", "--score", "0", "--feedback", "missed the empty-token case", **token))
        with ReefClient(here.daemon.url, "reef-local", scenario="coding") as client:
            step = eventually(lambda: (client.get("/reef/scenarios/coding/steps")["steps"] or [None])[0], 280)
            assert step["outcome"] == "release", (step, client.get("/reef/scenarios/coding"))
            release = client.release("coding", step["release_id"])
            pairs = release["verdict"]["evidence"]["pairs"]
            assert (
                release["verdict"]["decision"] == "accept"
                and [(pair[5], pair[6]) for pair in pairs] == [(1.0, 0.0)] * 3
            )
            assert {pair[2] for pair in pairs} == {"csv-quotes", "empty-token", "slug"}
        again = ok(here.agent(agent, *words, "fix the failing test in auth.py", **token))
        assert "MARK-cases" in again.out and "is on r1 now" in again.err
        why_out = ok(here.reef("why", "r1", "-s", "coding", **token)).out
        assert "missed the empty-token case" in why_out and "3 won" in why_out
        asked = schema(here.agent(agent, "harness", "say more about cases", "--json", **token), "ask")
        assert not asked["duplicate"]
        with ReefClient(here.daemon.url, "reef-local", scenario="coding") as client:
            assert client.record(asked["agent_record_id"])["request"] == {"request": "say more about cases"}
        assert fingerprint(here.home) == before, "nothing outside of Reef's directory changed"


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["minimal", "pi"])
def test_the_readmes_path(tmp_path: Path, npm_cache: Path, agent: str) -> None:
    story(tmp_path, npm_cache, agent)


@pytest.mark.soak
@pytest.mark.parametrize("agent", ["claude", "codex", "opencode"])
def test_the_readmes_path_with_bigger_programs(tmp_path: Path, npm_cache: Path, agent: str) -> None:
    story(tmp_path, npm_cache, agent)


def test_every_task_of_the_example_fails_untouched_and_can_be_solved(tmp_path: Path) -> None:
    tasks = read_tasks(EXAMPLE / "tasks")
    assert len(tasks) == 3
    for task in tasks:
        work = tmp_path / task.name
        shutil.copytree(task.folder / "setup", work)
        check = [sys.executable, "-B", str(task.folder / task.check)]
        assert subprocess.run(check, cwd=work, capture_output=True, check=False).returncode == 1
        name, text = next(found for mark, found in SOLVED.items() if mark in task.prompt)
        (work / name).write_text(text, encoding="utf-8")
        ran = subprocess.run(check, cwd=work, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout
