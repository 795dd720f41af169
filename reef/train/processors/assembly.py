"""SampleAssembly: the calls a report names become one PolicySample. Ids as sampled; nothing is rendered or padded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reef.core.records_types import AgentRecord
from reef.train.types import PolicySample, ProcessorContext, RowError, check_tensors

if TYPE_CHECKING:
    from reef.train.processors.pairing import ReportView


class SampleAssembly:
    """Shapes samples. ``multi_call`` "join" makes one sample of an ordered report, "last" trains its last call only."""

    def __init__(self, multi_call: str = "join") -> None:
        self.multi_call = multi_call

    @classmethod
    def from_config(cls, context: ProcessorContext) -> SampleAssembly:
        """Built from the recipe's ``multi_call`` knob when it has one."""
        return cls(str(context.config.get("multi_call", "join")))

    def build(self, view: ReportView, score: float) -> PolicySample | None:
        """One sample, or None with the reason noted on ``view`` (code and sentence)."""
        try:
            return self.sample(view.inferences, score)
        except RowError as error:
            view.note(str(error))
            return None

    def sample(self, calls: Sequence[AgentRecord], score: float) -> PolicySample:
        """One sample of ordered calls, where no report names them; raises RowError with the reason (code and sentence)."""
        records = calls if self.multi_call == "join" else calls[-1:]
        blocks = [_block(record) for record in records]
        tokens, mask, log_probs = _joined(blocks)
        first = records[0]
        versions = [span.get("version") for block in blocks for span in block.get("versions") or ()]
        return PolicySample(
            tokens,
            mask,
            log_probs,
            score,
            float(blocks[0].get("temperature", 1.0)),
            first.release_id,
            versions[0] if versions else None,
            tuple(record.agent_record_id for record in records),
            {"versions": versions} if len(set(versions)) > 1 else {},
        )


def _block(record: AgentRecord) -> Mapping[str, Any]:
    response = record.payload.get("response")
    block = response.get("training") if isinstance(response, Mapping) else None
    if not isinstance(block, Mapping):
        why = record.meta.get("training_error") or "its answer came without token ids and log-probs"
        raise RowError(f"no_tensors: {record.agent_record_id}: {why}")
    try:
        check_tensors(block)
    except RowError as error:
        raise RowError(f"bad_tensors: {record.agent_record_id}: {error}") from error
    return block


def _joined(blocks: list[Mapping[str, Any]]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    """Join ordered calls when each later prompt starts with exactly the ids seen so far; new context gets mask 0."""
    first = blocks[0]
    tokens = list(first["tokens"])
    mask, log_probs = list(first["loss_mask"]), [float(value) for value in first["rollout_log_probs"]]
    for block in blocks[1:]:
        if block.get("temperature", 1.0) != first.get("temperature", 1.0):
            raise RowError("mixed_temperature: the calls of one report were sampled at different temperatures")
        later = list(block["tokens"])
        own = len(block["loss_mask"])
        if later[: len(tokens)] != tokens or len(later) - own < len(tokens):
            raise RowError("fork: a later prompt does not begin with the ids of the call before it")
        context = len(later) - own - len(tokens)
        mask += [0] * context + list(block["loss_mask"])
        log_probs += [0.0] * context + [float(value) for value in block["rollout_log_probs"]]
        tokens = later
    return tuple(tokens), tuple(mask), tuple(log_probs)
