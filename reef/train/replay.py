"""The order in which a restarted trainer takes up what a dead one left: that in which it was judged. Called by train.loop."""

from __future__ import annotations

from collections.abc import Sequence

from reef.core.records_types import RecordState, RequestType
from reef.records import RecordStore, Row


def as_it_was(rows: Sequence[Row], records: RecordStore, *, reports_only: bool) -> list[tuple[int, Row]]:
    """Rows with the moment at which each was judged: of a report that waited, when the last call it names had ended.

    For a processor that is fed reports only, the calls that reports waited for come as well, each in its place.
    """
    late = records.ended_later([row.seq for row in rows if row.record.request_type is RequestType.REPORT])
    placed: dict[int, tuple[int, Row]] = {}
    for row in rows:
        calls, rev = late.get(row.seq, []), row.rev or 0
        if row.record.state in (RecordState.CONSUMED, RecordState.REFUSED):
            rev = max([rev, *(call.rev or 0 for call in calls)])
        elif reports_only:
            placed |= {call.seq: (call.rev or 0, call) for call in calls}
        placed[row.seq] = (rev, row)
    return sorted(placed.values(), key=lambda one: (one[0], one[1].rev or 0))
