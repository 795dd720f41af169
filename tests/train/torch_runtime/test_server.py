"""The engine over HTTP: its key, its refusals, what a client that goes away leaves, pause and weight verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models import build_tiny_model
from tests.train.torch_runtime.support import PROMPTS, Bench, eventually


def load(bench: Bench) -> dict[str, Any]:
    with bench.client() as client:
        return dict(client.get("/v1/loads").json()["loads"][0])


def test_all_but_health_needs_the_key(bench: Bench) -> None:
    with bench.client() as client:
        client.headers.pop("Authorization")
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        for path in ("/generate", "/load_lora_adapter", "/update_weights_from_disk", "/pause_generation"):
            assert client.post(path, json={}).status_code == 401
        assert client.get("/model_info").status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/generate", {}, "input_ids"),
        ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 9999}}, "maximum context length of 512"),
        ("/generate", {"input_ids": [1], "lora_path": "nobody"}, "nobody"),
        ("/generate", {"input_ids": [1], "sampling_params": {"n": 2}}, "n must be 1"),
        ("/load_lora_adapter", {"lora_name": "x", "lora_path": "/nowhere"}, "holds no adapter"),
        ("/update_weights_from_disk", {"model_path": "/nowhere"}, "no model folder"),
        ("/pause_generation", {"mode": "later"}, "abort, retract, in_place"),
        ("/abort_request", {}, "rid"),
    ],
)
def test_a_wrong_request_is_refused_in_words(bench: Bench, path: str, body: dict[str, Any], told: str) -> None:
    with bench.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]
    assert len(bench.generate(PROMPTS[0])["output_ids"]) == 8


def test_the_answer_has_the_shape_of_sglang(bench: Bench) -> None:
    answer = bench.generate(PROMPTS[0], max_new_tokens=5)
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 5)
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    base = bench.base.content_id
    assert meta["weight_versions"] == [{"version": base, "start": 0, "end": 5}]
    with bench.client() as client:
        info = client.get("/model_info").json()
    assert info["weight_version"] == base and info["is_generation"] is True


def test_a_client_that_goes_away_aborts_its_request(bench: Bench) -> None:
    with bench.client() as client:
        client.post("/pause_generation", json={"mode": "in_place"}).raise_for_status()
        for stream in (False, True):
            body = bench.body(PROMPTS[0], stream=stream, max_new_tokens=400)
            with pytest.raises(httpx.ReadTimeout):
                client.post("/generate", json=body, timeout=0.3)
        eventually(lambda: load(bench)["num_running_reqs"] + load(bench)["num_waiting_reqs"] == 0)
        client.post("/continue_generation", json={}).raise_for_status()
    assert len(bench.generate(PROMPTS[0])["output_ids"]) == 8


def test_weights_can_be_swapped_and_swapped_back(bench: Bench, tiny: Path, tmp_path: Path) -> None:
    other = build_tiny_model(tmp_path / "other", seed=3)
    before = bench.generate(PROMPTS[1], sampling_seed=2)
    with bench.client() as client:
        for folder, version in ((other, "other"), (tiny, bench.base.content_id)):
            body = {"model_path": str(folder), "weight_version": version}
            assert client.post("/update_weights_from_disk", json=body).json()["success"] is True
            answer = bench.generate(PROMPTS[1], sampling_seed=2)
            assert answer["meta_info"]["weight_version"] == version
            same = answer["meta_info"]["output_token_logprobs"] == before["meta_info"]["output_token_logprobs"]
            assert same == (version != "other")


def test_an_adapter_leaves_when_its_last_request_ends(bench: Bench) -> None:
    trained = bench.improve(bench.base, 1)
    events = bench.stream(PROMPTS[0], max_new_tokens=400)
    next(events)
    with bench.client() as client:
        client.post("/unload_lora_adapter", json={"lora_name": trained.content_id}).raise_for_status()
        assert trained.content_id not in client.get("/model_info").json()["adapters"]
        last = list(events)[-1]["meta_info"]
        assert last["weight_versions"] == [{"version": trained.content_id, "start": 0, "end": 400}]
        refused = client.post("/generate", json=bench.body(PROMPTS[0]))
    assert refused.status_code == 400 and trained.content_id in refused.json()["error"]["message"]
    bench.runtime.publish(trained)
    assert len(bench.generate(PROMPTS[0])["output_ids"]) == 8
