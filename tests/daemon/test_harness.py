"""The harness routes: a tree is there before any traffic, and a call's release is believed where the chain has it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from reef.client import ReefClient, RemoteError
from reef.core.artifacts import artifact_path
from reef.harness.tree import Entry, Tree
from reef.launch import StartFailed
from reef.train.harness_runtime import keep_tree
from tests.clients import answers
from tests.faults.world import ROOT, STUB
from tests.support import Daemon, daemon, provider

CALL = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def release(one: Daemon, scenario: str, text: str, *more: Entry) -> str:
    """Put a release behind the head of a stopped daemon's chain, as a step will; returns its id."""
    from reef.core.artifacts import Decision, Verdict
    from reef.releases import ReleaseChain, StepCommit
    from reef.store import Store

    store = Store(one.home / "reef.db")
    chain = ReleaseChain(store)
    tree = Tree.of([Entry("rules", "base", text), *more])
    kept = keep_tree(one.home, tree)
    verdict = Verdict(Decision.ACCEPT, "test", "made by a test")
    made = chain.commit(
        StepCommit(
            f"step-{text}", scenario, f"batch-{text}", "release", {}, (), content_id=kept.content_id,
            size_bytes=kept.size_bytes, verdict=verdict,
        )
    )  # fmt: skip
    store.close()
    assert made is not None
    return made.release_id


def script(one: Daemon, **query: str) -> str:
    with one.client() as client:
        answer = client.http.get("/reef/harness/install", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_harness_is_served_before_any_traffic(tmp_path: Path) -> None:
    with daemon(
        tmp_path, reef_upstream_url="http://127.0.0.1:9", reef_recipe="harness", reef_upstream_model="m"
    ) as one:
        with one.client() as client:
            client.post("/reef/scenarios", {"name": "first-day"})
            assert client.get("/reef/scenarios/first-day")["surface"] == "harness"
            found = client.get("/reef/harness", scenario="first-day", session="s")
            assert found["release_id"] == "r0" and found["model"] == "m"
            assert Tree.from_dict({key: found[key] for key in ("version", "entries")}).content_id == found["content_id"]
            assert client.get("/reef/harness")["scenario"] == "default", (
                "a new name creates the scenario, as a call does"
            )
            names = [row["name"] for row in client.get("/reef/harness/adapters")["adapters"]]
            assert names == ["claude", "codex", "minimal", "opencode", "pi"]
            for name in ("../x", "a b"):
                with pytest.raises(RemoteError) as refused:
                    client.get("/reef/harness", scenario=name)
                assert refused.value.status == 400
        for path in ("/reef/harness", "/reef/harness/adapters", "/reef/harness/install?adapter=pi"):
            assert httpx.get(one.url + path).status_code == 401
        said = script(one, adapter="claude", scenario="first-day")
        token = (one.home / "token").read_text(encoding="utf-8").strip()
        assert token not in said and "--scenario first-day" in said and one.url in said
        with one.client() as client:  # by whatever name it was called: another machine knows no other
            called = client.http.get("/reef/harness/install?adapter=pi", headers={"host": "localhost:8900"}).text
        assert "--url http://localhost:8900" in called
        assert subprocess.run(["bash", "-n"], input=said, text=True, check=False).returncode == 0
        left = subprocess.run(
            ["bash"], input=said, text=True, capture_output=True, env={"PATH": "/usr/bin:/bin"}, check=False
        )
        assert left.returncode == 1 and "REEF_TOKEN is not set" in left.stderr


def test_where_there_is_no_harness_the_way_forward_is_said(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9") as one, one.client() as client:
        for path, query in (("/reef/harness", {}), ("/reef/harness/install", {"adapter": "pi"})):
            with pytest.raises(RemoteError) as refused:
                client.get(path, **query)
            assert refused.value.status == 409 and refused.value.code == "no_harness"
            assert "reef up --recipe harness" in refused.value.hint
        for name, status in (("", 400), ("clade", 404)):
            with pytest.raises(RemoteError) as refused:
                client.get("/reef/harness/install", adapter=name)
            assert refused.value.status == status and "claude" in refused.value.hint


def test_seed_rollback_and_diff(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    (seed / "rules").mkdir(parents=True)
    (seed / "rules" / "base.md").write_text("The seed.\n")
    settings = {"reef_upstream_url": "http://127.0.0.1:9", "reef_recipe": "harness", "reef_seed": str(seed)}
    home = tmp_path / "home"
    with daemon(home, **settings) as one, one.client() as client:
        client.post("/reef/scenarios", {"name": "s"})
        content_id = client.get("/reef/harness", scenario="s")["content_id"]
        assert (artifact_path(home, content_id) / "tree.json").is_file()
    assert release(one, "s", "Better.\n") == "r1"
    with daemon(home, **settings) as one, one.client() as client:
        assert client.get("/reef/harness", scenario="s")["entries"][0]["text"] == "Better.\n"
        changed = client.get("/reef/scenarios/s/releases/r1/diff")["diff"]
        assert "-The seed." in changed and "+Better." in changed and "a/rules/base" in changed
        assert client.act("s", "rollback")["release_id"] == "r2"
        assert client.get("/reef/harness", scenario="s")["content_id"] == content_id
        assert client.get("/reef/scenarios/s/releases/r2/diff", to="r0")["diff"] == ""
    (seed / "rules" / "odd.txt").write_text("x")
    with pytest.raises(StartFailed, match="is no entry"), daemon(tmp_path / "other", **settings):
        pass


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_recorded_with_the_release_it_names(tmp_path: Path, stream: bool) -> None:
    answer = answers.chat_stream(tools=False) if stream else answers.chat_plain(tools=False)
    with (
        provider(answer) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url, reef_recipe="harness") as one,
        one.client("s") as client,
    ):
        client.get("/reef/harness", scenario="s")

        def recorded(**headers: str) -> Any:
            body = {**CALL, "stream": stream}
            sent = client.http.post("/v1/chat/completions", json=body, headers=headers)
            assert sent.status_code == 200
            return client.record(sent.headers["x-reef-agent-record-id"])["release_id"]

        assert recorded() is None
        assert recorded(**{"x-reef-release-id": "r0"}) == "r0"
        for odd in ("r9", "latest", "r0'", ""):
            assert recorded(**{"x-reef-release-id": odd}) is None


def test_calls_of_other_recipes_name_no_release(tmp_path: Path) -> None:
    with (
        provider(answers.chat_plain(tools=False)) as upstream,
        daemon(tmp_path, reef_upstream_url=upstream.url) as one,
        one.client("s") as client,
    ):
        sent = client.http.post("/v1/chat/completions", json=CALL, headers={"x-reef-release-id": "r0"})
        assert client.record(sent.headers["x-reef-agent-record-id"])["release_id"] is None


def test_what_was_garbled_on_disk_is_not_served(tmp_path: Path) -> None:
    with daemon(tmp_path, reef_upstream_url="http://127.0.0.1:9", reef_recipe="harness") as one:
        client: ReefClient
        with one.client() as client:
            found = client.get("/reef/harness", scenario="s")
            path = artifact_path(tmp_path, found["content_id"]) / "tree.json"
            path.write_text(path.read_text().replace("Read", "Rm"))
            with pytest.raises(RemoteError, match="not what was written"):
                client.get("/reef/harness", scenario="s")


def test_a_scenario_that_was_only_recorded_gets_a_harness(tmp_path: Path) -> None:
    settings = {"reef_upstream_url": "http://127.0.0.1:9"}
    with daemon(tmp_path, **settings) as one, one.client() as client:
        client.post("/reef/scenarios", {"name": "old"})
    with daemon(tmp_path, **settings, reef_recipe="harness") as one, one.client() as client:
        assert client.get("/reef/harness", scenario="old")["release_id"] == "r0"
        found = client.get("/reef/scenarios/old")
        assert (found["recipe"], found["surface"]) == ("harness", "harness") and "changes" in found["waiting_for"]


def test_a_scenario_of_weights_is_not_taken_for_a_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {"reef_upstream_url": "http://127.0.0.1:9"}
    with daemon(tmp_path, **settings, reef_recipe=STUB) as one, one.client() as client:
        client.post("/reef/scenarios", {"name": "old"})
    with daemon(tmp_path, **settings, reef_recipe="harness") as one, one.client() as client:
        for path, query in (("/reef/harness", {}), ("/reef/harness/install", {"adapter": "minimal"})):
            with pytest.raises(RemoteError, match="made by recipe stub") as refused:
                client.get(path, scenario="old", **query)
            assert refused.value.status == 409
        assert client.get("/reef/harness", scenario="new")["release_id"] == "r0"
