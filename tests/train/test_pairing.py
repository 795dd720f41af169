"""PairingProcessor at its own surface: ingest, ready, build_batch, acknowledge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reef.core.records_types import RecordState
from reef.recipes.grpo import GroupProcessor
from reef.recipes.weights import ScoredProcessor
from reef.train.processors.base import DataProcessor, RecipeBug
from reef.train.processors.pairing import WAIT, Group, Judgment, ReportView
from reef.train.types import PolicyBatch, ProcessorContext
from tests.train.factories import inference, report


def make(cls: type[DataProcessor] = ScoredProcessor, **config: Any) -> Any:
    return cls(ProcessorContext("s", {"batch_size": 1, **config}))


def reasons(processor: DataProcessor) -> dict[str, str | None]:
    return {one.record_id: one.reason for one in processor.drain_judged()}


def rewards(batch: PolicyBatch) -> list[float]:
    return [sample.reward for sample in batch.samples]


def test_the_same_batch_until_it_is_acknowledged_and_then_the_next() -> None:
    processor = make()
    for name in ("a", "b"):
        processor.ingest(inference(f"i{name}"))
        processor.ingest(report(f"r{name}", [f"i{name}"], 0.5 if name == "a" else 0.6))
    first = processor.build_batch()
    assert processor.build_batch() is first
    assert processor.batch_records(first.batch_id) == ("ra", "ia")
    processor.acknowledge(first.batch_id)
    second = processor.build_batch()
    assert (rewards(first), rewards(second)) == ([0.5], [0.6])
    assert first.batch_id != second.batch_id
    processor.acknowledge(second.batch_id)
    assert not processor.ready()
    assert processor.retention_decision().releasable_agent_record_ids == {"ra", "ia", "rb", "ib"}


def test_units_leave_in_report_order_even_when_resolved_late() -> None:
    processor = make(batch_size=2)
    processor.ingest(report("first", ["i1"], 0.1))
    processor.ingest(report("second", ["i2"], 0.2))
    processor.ingest(inference("i2"))
    processor.ingest(inference("i1"))
    assert rewards(processor.build_batch()) == [0.1, 0.2]


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"references": [], "score": 1.0}, "no_references"),
        ({"references": ["i"], "score": None}, "no_score"),
        ({"references": ["i"], "score": float("nan")}, "score_not_finite"),
        ({"references": ["i"], "score": float("inf")}, "score_not_finite"),
        ({"references": ["i"], "score": 1.0, "metadata": {"training": {"eligible": False}}}, "not_eligible"),
    ],
)
def test_what_never_trains_says_why(payload: dict[str, Any], code: str) -> None:
    processor = make()
    processor.ingest(inference("i"))
    references, score = payload.pop("references"), payload.pop("score")
    processor.ingest(report("r", references, score, **payload))
    assert not processor.ready()
    assert (reasons(processor)["r"] or "").startswith(code)


@pytest.mark.parametrize("state", [RecordState.INCOMPLETE, RecordState.ABORTED, RecordState.FAILED])
def test_an_answer_that_did_not_end_never_trains(state: RecordState) -> None:
    processor = make()
    processor.ingest(report("r", ["i"]))
    processor.ingest(inference("i", state=state))
    assert (reasons(processor)["r"] or "").startswith(f"inference_{state.value}")


def test_an_answer_with_nothing_in_it_never_trains() -> None:
    processor = make()
    processor.ingest(report("r", ["i"]))
    processor.ingest(replace(inference("i"), reason="empty_answer"))
    assert (reasons(processor)["r"] or "").startswith("inference_empty")


@pytest.mark.parametrize(
    ("block", "rule"),
    [
        ({"tokens": []}, "tokens is missing or empty"),
        ({"mask": [1, 2]}, "only 0 and 1"),
        ({"mask": [0, 0]}, "no 1"),
        ({"log_probs": [-0.1]}, "1 rollout_log_probs for 2"),
        ({"log_probs": [-0.1, float("-inf")]}, "finite"),
        ({"log_probs": [-0.1, 0.3]}, "above 0"),
        ({"tokens": [1, 2]}, "leave no prompt"),
        ({"temperature": 0}, "temperature"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused_with_the_rule(block: dict[str, Any], rule: str) -> None:
    processor = make()
    processor.ingest(inference("i", **block))
    processor.ingest(report("r", ["i"]))
    reason = reasons(processor)["r"] or ""
    assert reason.startswith("bad_tensors: i:")
    assert rule in reason


def test_an_inference_trains_once() -> None:
    processor = make()
    processor.ingest(inference("i"))
    processor.ingest(report("r1", ["i"], 0.1))
    processor.ingest(report("r2", ["i"], 0.2))
    batch = processor.build_batch()
    processor.acknowledge(batch.batch_id)
    assert not processor.ready()
    processor.ingest(report("r3", ["i"], 0.3))
    found = reasons(processor)
    assert (found["r2"] or "").startswith("reference_consumed")
    assert (found["r3"] or "").startswith("reference_consumed")


class Exclusive(ScoredProcessor):
    exclusive_sources = True


def test_exclusive_sources_belong_to_their_first_report() -> None:
    processor = make(Exclusive, batch_size=2)
    processor.ingest(inference("i"))
    processor.ingest(report("r1", ["i"], 0.1))
    processor.ingest(report("r2", ["i"], 0.2))
    assert (reasons(processor)["r2"] or "").startswith("source_taken")


def test_nothing_a_live_report_names_is_releasable() -> None:
    processor = make(min_score=0.5)
    processor.ingest(inference("i"))
    processor.ingest(report("low", ["i"], 0.1))
    processor.ingest(report("waits", ["i", "later"], 0.9))
    assert processor.retention_decision().releasable_agent_record_ids == {"low"}


def test_an_ordered_multi_call_report_becomes_one_sample() -> None:
    processor = make()
    processor.ingest(inference("i1", [1, 2, 3, 4], [1, 1], [-0.1, -0.2]))
    processor.ingest(inference("i2", [1, 2, 3, 4, 5, 6, 7], [1], [-0.3]))
    processor.ingest(report("r", ["i1", "i2"], 1.0))
    sample = processor.build_batch().samples[0]
    assert sample.tokens == (1, 2, 3, 4, 5, 6, 7)
    assert sample.loss_mask == (1, 1, 0, 0, 1)
    assert sample.rollout_log_probs == (-0.1, -0.2, 0.0, 0.0, -0.3)


def test_a_fork_is_refused_or_its_last_call_trains() -> None:
    for multi_call, expected in (("join", None), ("last", (9, 9, 9))):
        processor = make(multi_call=multi_call)
        processor.ingest(inference("i1", [1, 2, 3], [1], [-0.1]))
        processor.ingest(inference("i2", [9, 9, 9], [1], [-0.3]))
        processor.ingest(report("r", ["i1", "i2"], 1.0))
        if expected is None:
            assert (reasons(processor)["r"] or "").startswith("fork")
        else:
            assert processor.build_batch().samples[0].tokens == expected


def test_groups_are_complete_and_in_order_of_their_first_report() -> None:
    processor = make(GroupProcessor, batch_size=2, group_size=2)
    for index, prompt in enumerate((1, 2, 2, 1, 1, 1)):
        processor.ingest(inference(f"i{index}", [prompt, 5], [1], [-0.1]))
        processor.ingest(report(f"r{index}", [f"i{index}"], index / 10))
    batch = processor.build_batch()
    assert rewards(batch) == [0.0, 0.3]
    assert len(set(batch.group_ids)) == 1
    processor.acknowledge(batch.batch_id)
    second = processor.build_batch()
    assert rewards(second) == [0.1, 0.2]
    processor.acknowledge(second.batch_id)
    assert rewards(processor.build_batch()) == [0.4, 0.5]


class Grid(ScoredProcessor):
    """Two slots a group; a group with a negative score is worthless."""

    ordered_groups = True

    def judge(self, view: ReportView) -> Judgment:
        if (gate := view.eligibility()) is not None:
            return gate
        sample = self._assembly.build(view, view.score or 0.0)
        return Judgment.train(sample, group_key=view.metadata["group"], slot=view.metadata["slot"])

    def group_ready(self, key: Any, members: Any) -> bool | Group:
        if any(member.value.reward < 0 for member in members):
            return Group.DISCARD
        return len(members) == 2

    def make_batch(self, units: Any, batch_number: int) -> PolicyBatch:
        return PolicyBatch(f"b{batch_number}", tuple(one.value for unit in units for one in unit.candidates))


def grid_report(name: str, group: str, slot: int, score: float = 1.0) -> Any:
    return report(name, [f"i-{name}"], score, metadata={"group": group, "slot": slot})


def test_a_slot_takes_its_first_report_and_a_discarded_group_refuses_late_ones() -> None:
    processor = make(Grid, batch_size=2)
    for name in ("a", "b", "c", "d", "e"):
        processor.ingest(inference(f"i-{name}"))
    processor.ingest(grid_report("a", "g1", 0))
    processor.ingest(grid_report("b", "g1", 0))
    processor.ingest(grid_report("c", "g2", 0))
    processor.ingest(grid_report("d", "g2", 1, -1.0))
    processor.ingest(grid_report("e", "g2", 1))
    found = reasons(processor)
    assert (found["b"] or "").startswith("slot_taken")
    for late in ("c", "d", "e"):
        assert (found[late] or "").startswith("group_discarded")
    assert {"c", "d", "e", "i-c"} <= processor.retention_decision().releasable_agent_record_ids


def test_a_later_group_does_not_overtake_an_unfinished_one() -> None:
    processor = make(Grid, batch_size=2)
    for name in ("a", "b", "c", "d"):
        processor.ingest(inference(f"i-{name}"))
    processor.ingest(grid_report("a", "g1", 0, 0.1))
    processor.ingest(grid_report("b", "g2", 0, 0.2))
    processor.ingest(grid_report("c", "g2", 1, 0.3))
    assert not processor.ready()
    processor.ingest(grid_report("d", "g1", 1, 0.4))
    assert rewards(processor.build_batch()) == [0.1, 0.4]


class Waits(ScoredProcessor):
    def judge(self, view: ReportView) -> Judgment:
        return WAIT


def test_wait_on_a_resolved_report_is_a_bug_that_names_the_class() -> None:
    processor = make(Waits)
    processor.ingest(inference("i"))
    with pytest.raises(RecipeBug, match=r"Waits\.judge answered WAIT"):
        processor.ingest(report("r", ["i"]))


def test_stale_samples_are_dropped_with_the_number_of_releases() -> None:
    lags = {"r1": 1, "r2": 5}
    context = ProcessorContext("s", {"batch_size": 1, "max_staleness": 2}, lag=lambda release: lags[release or ""])
    processor = ScoredProcessor(context)
    processor.ingest(inference("old", release_id="r2"))
    processor.ingest(report("stale", ["old"], 0.9))
    assert not processor.ready()
    assert (reasons(processor)["stale"] or "").startswith("stale: generated 5 releases ago")
    processor.ingest(inference("new", release_id="r1"))
    processor.ingest(report("fresh", ["new"], 0.8))
    assert processor.ready()


def test_a_report_that_waits_too_long_is_refused() -> None:
    processor = make()
    late = report("r", ["never"])
    processor.ingest(late)
    assert processor.progress()["waiting_for"] == ["never"]
    processor.expire(late.created_at + 1)
    assert (reasons(processor)["r"] or "").startswith("wait_timeout")
    assert processor.progress()["waiting_for"] == []
