"""Episodes on more than one machine: a real Ray cluster, of one machine here."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.evolve.test_episodes import REAL, careful, importable
from tests.evolve.test_steps import a_step, evolving, fail

__all__ = ["importable"]  # the fixture

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


def test_episodes_run_as_tasks_of_a_ray_cluster(tmp_path: Path) -> None:
    with evolving(tmp_path, careful, reef_executor="ray", reef_parallel="2", **REAL) as (one, client, _):
        fail(client)
        release = client.release("s", a_step(client)["release_id"])
        assert release["verdict"]["decision"] == "accept", json.dumps(release["verdict"])
        assert len(list(one.home.glob("episodes/*/*/transcript.jsonl"))) == 6
