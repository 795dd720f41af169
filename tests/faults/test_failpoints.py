"""The daemon dies at named points of a step; after the restart the story is the one nobody disturbed (Show 4).

Every act is repeated until it is answered, with the same ids, as a client with retries does it. A stub in place of the
arithmetic makes step ids comparable between homes: they hash the parent, the rows and the algorithm state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reef.client import ReefClient, RemoteError
from reef.errors import DaemonUnreachable
from reef.launch import StartFailed
from tests.faults.test_kill import SOAK, sound
from tests.faults.world import ROOT, STUB, imported
from tests.support import Daemon, eventually

SETTINGS = {"reef.upstream_url": "http://127.0.0.1:9", "reef.recipe": STUB, "reef.batch_size": "3"}
NAMED = ("before-step:2", "before-step-commit", "before-publish:2", "before-settle")
Act = Callable[[ReefClient], Any]


def report(number: int, *references: str, score: float = 1.0) -> Act:
    named = list(references) or [f"i{number}"]
    return lambda client: client.report(score=score / number, references=named, agent_record_id=f"p{number}")


def store(*numbers: int) -> Act:
    return lambda client: client.post("/reef/records", {"records": [imported(f"i{number}") for number in numbers]})


def step_is(number: int) -> Act:
    return lambda client: eventually(lambda: client.get("/reef/scenarios/s")["step"] >= number)


def roll_back(client: ReefClient) -> None:
    try:
        client.act("s", "rollback", {"to": "r1"})
    except RemoteError as error:
        if error.code != "already_serving":
            raise


def settled(client: ReefClient) -> dict[str, Any]:
    """Wait until every report is judged."""
    return eventually(
        lambda: (
            all(row["state"] != "parked" for row in client.records("s", type="report", limit=100))
            and client.get("/reef/scenarios/s")
        )
    )


ACTS: tuple[Act, ...] = (
    report(1),
    store(1, 2, 3, 4, 5),
    report(2),
    report(2),
    report(3, "i3", "i3"),
    step_is(1),
    report(4, "i2"),
    report(5, "i4"),
    lambda client: client.act("s", "pause"),
    store(6, 7, 8, 9, 10),
    report(6),
    report(7),
    report(8),
    lambda client: client.act("s", "resume"),
    step_is(2),
    roll_back,
    report(9),
    settled,
)


def story(client: ReefClient) -> dict[str, Any]:
    """Everything that steps changed, without times."""
    steps = client.get("/reef/scenarios/s/steps")["steps"]
    releases = [client.release("s", row["release_id"]) for row in client.releases("s")]
    names = ("release_id", "content_id", "parent", "step", "step_id", "state", "restored_from", "records")
    records = client.records("s", limit=100)
    return {
        "steps": [(row["step"], row["step_id"], row["batch_id"], row["outcome"], row["release_id"]) for row in steps],
        "releases": [{name: release[name] for name in names} for release in releases],
        "records": {
            row["agent_record_id"]: (row["state"], row["consumed_step"], (row["reason"] or {}).get("code"))
            for row in records
        },
        "batch": client.get("/reef/scenarios/s")["batch"],
    }


def run(home: Path, failpoint: str | None) -> tuple[dict[str, Any], int, int]:
    """The story of one home, how often the daemon died, and how many transactions there were."""
    one, deaths = Daemon(home, SETTINGS), 0
    try:
        one.start(failpoint=failpoint)
    except StartFailed:
        assert one.died()
        deaths += 1
        one.start()
    try:
        for act in ACTS:
            while True:
                try:
                    with one.client() as client:
                        act(client)
                    break
                except (DaemonUnreachable, httpx.TransportError):
                    assert one.died(), "the daemon does not answer, but it lives"
                    deaths += 1
                    one.start()
        with one.client() as client:
            found, commits = story(client), client.status()["store"]["commits"]
        assert sound(home)
    finally:
        one.kill()
    return found, deaths, commits


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield


@pytest.fixture(scope="module")
def undisturbed(importable: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], int]:
    found, deaths, commits = run(tmp_path_factory.mktemp("undisturbed"), None)
    assert deaths == 0
    return found, commits


def test_the_undisturbed_story_is_the_expected_one(undisturbed: tuple[dict[str, Any], int]) -> None:
    found, _ = undisturbed
    assert [(number, batch, release) for number, _, batch, _, release in found["steps"]] == [
        (2, "s:2", "r2"),
        (1, "s:1", "r1"),
    ]
    assert [(row["release_id"], row["state"]) for row in found["releases"]] == [
        ("r3", "serving"),
        ("r2", "rolled_back"),
        ("r1", "published"),
        ("r0", "published"),
    ]
    assert found["releases"][2]["records"] == ["p1", "i1", "i2", "i3", "p2", "p3"]
    assert found["releases"][1]["records"] == ["i4", "p5", "i6", "i7", "p6", "p7"]
    assert found["records"]["p4"] == ("refused", None, "reference_consumed")
    assert found["records"]["p8"][0] == found["records"]["p9"][0] == "accepted"
    assert found["batch"] == {"have": 2, "need": 3}


@pytest.mark.parametrize("failpoint", NAMED)
def test_a_death_at_a_named_point_changes_nothing(
    undisturbed: tuple[dict[str, Any], int], tmp_path: Path, failpoint: str
) -> None:
    found, deaths, _ = run(tmp_path, failpoint)
    assert deaths == 1
    assert found == undisturbed[0]


@pytest.mark.parametrize(("where", "part"), [("before-commit", 0.3), ("after-commit", 0.65)])
def test_a_death_at_a_transaction_changes_nothing(
    undisturbed: tuple[dict[str, Any], int], tmp_path: Path, where: str, part: float
) -> None:
    found, deaths, _ = run(tmp_path, f"{where}:{int(part * undisturbed[1])}")
    assert deaths == 1
    assert found == undisturbed[0]


@SOAK
@pytest.mark.soak
@pytest.mark.parametrize("where", ["before-commit", "after-commit"])
def test_a_death_at_every_transaction_changes_nothing(
    undisturbed: tuple[dict[str, Any], int], tmp_path: Path, where: str
) -> None:
    for turn in range(1, undisturbed[1] + 1):
        found, deaths, _ = run(tmp_path / str(turn), f"{where}:{turn}")
        assert deaths <= 1
        assert found == undisturbed[0], turn
