"""The OpenAPI document: it names every route and no other, and schemathesis finds a live daemon to be as it says.

20 examples a route, 1,000 under REEF_SOAK=1, in front of a scripted provider and once more on a recipe that trains.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from reef.daemon.app import routes
from reef.daemon.openapi import document
from tests.clients import answers
from tests.evolve.world import make_tasks
from tests.faults.world import ROOT, STUB, imported
from tests.support import Daemon, daemon, eventually, provider

EXAMPLES = "1000" if os.environ.get("REEF_SOAK") else "20"
SEED = () if os.environ.get("REEF_SOAK") else ("--seed", "1")
NEVER_ENDS, NEVER_ACCEPTS = "get_reef_events", "get_v_responses"


def test_the_document_names_every_route_and_no_other() -> None:
    served = {
        (route.path, method)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    said = {(path, method.upper()) for path, one in document()["paths"].items() for method in one}
    assert said == served


def test_each_path_parameter_is_declared_and_every_reference_exists() -> None:
    schemas = document()["components"]["schemas"]
    for path, operations in document()["paths"].items():
        for operation in operations.values():
            named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path)), path
    for name in re.findall(r"#/components/schemas/(\w+)", str(document())):
        assert name in schemas


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Daemon]:
    with (
        provider(answers.chat_plain(tools=False)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client("default") as client,
    ):
        client.post("/reef/records", {**imported("i1"), "agent_record_id": "example-1"})
        yield one


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"reef_recipe": STUB, "reef_batch_size": "1"}
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9", **settings) as one, one.client("default") as client:
        client.post("/reef/records", {"records": [imported("i1"), imported("i2")]})
        client.post("/reef/records", {**imported("i3"), "agent_record_id": "example-1"})
        for number in (1, 2):
            client.report(score=1, references=[f"i{number}"])
        eventually(lambda: client.get("/reef/scenarios/default")["step"] == 2)
        yield one


def fuzz(one: Daemon, *words: str) -> None:
    """Run schemathesis with all its checks; it must find nothing, and the daemon must have no traceback in its log."""
    token = (one.home / "token").read_text(encoding="utf-8").strip()
    ran = subprocess.run(
        [
            str(Path(sys.executable).parent / "schemathesis"), "run", f"{one.url}/openapi.json",
            "-H", f"Authorization: Bearer {token}", "--checks", "all", "-n", EXAMPLES, "--no-color", *SEED,
            "--exclude-operation-id", NEVER_ENDS, "--exclude-operation-id", NEVER_ACCEPTS, "--request-timeout", "20", *words,
        ],
        capture_output=True, text=True, cwd=one.home, env={**os.environ, "NO_PROXY": "*"}, check=False,
    )  # fmt: skip
    shown = "\n".join(line[:500] for line in ran.stdout.splitlines())
    assert ran.returncode == 0, shown[-6000:] + ran.stderr[-2000:]
    assert "No test cases" not in ran.stdout and "passed" in ran.stdout
    said = (one.home / "logs" / "reef.jsonl").read_text(encoding="utf-8")
    assert "Traceback" not in said, said[-4000:]


@pytest.mark.slow
def test_a_recording_daemon_is_as_the_document_says(recording: Daemon) -> None:
    fuzz(recording)


@pytest.mark.slow
def test_a_training_daemon_is_as_the_document_says(training: Daemon) -> None:
    """The acts and reads of scenarios, where there is a chain to act on."""
    fuzz(training, "--include-path-regex", "^/(reef/scenarios|reef/status|metrics)")


@pytest.mark.slow
def test_a_daemon_with_a_harness_is_as_the_document_says(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9", reef_recipe="harness") as one:
        with one.client("default") as client:
            client.get("/reef/harness")
        fuzz(one, "--include-path-regex", "^/reef/(harness|scenarios)")


@pytest.mark.slow
def test_a_daemon_that_evolves_is_as_the_document_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"reef_tasks": str(make_tasks(tmp_path / "tasks", "one")), "reef_evaluate": "tests.evolve.world:coin"}
    settings |= {"reef_recipe": "evolve", "reef_gate": "wins", "reef_propose": "tests.evolve.world:nothing"}
    with daemon(tmp_path / "home", reef_upstream_url="http://127.0.0.1:9", **settings) as one:
        fuzz(one, "--include-path-regex", "^/reef/(train|harness/proposals|scenarios)")
