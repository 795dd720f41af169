"""Rows of an export as a Parquet file, a row group for some thousand of them. Needs the extra reefd[parquet]."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from reef.errors import BadRequest, ReefError

_GROUP = 2000


def write_parquet(rows: Iterable[dict[str, Any]], path: Path, what: str) -> int:
    """Write ``rows`` to ``path`` and return how many there were; raises ReefError without pyarrow."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ReefError(
            "Parquet needs pyarrow", hint="pip install 'reefd[parquet]', or use --format jsonl", code="no_pyarrow"
        ) from None
    text, at = pa.string(), pa.timestamp("us", tz="UTC")
    start = [("agent_record_id", text), ("scenario", text), ("release_id", text), ("session", text), ("created_at", at)]
    training = [
        *start,
        ("scores", pa.list_(pa.float64())),
        ("tokens", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("rollout_log_probs", pa.list_(pa.float64())),
        ("temperature", pa.float64()),
        ("rest", text),
    ]
    records = [
        *start,
        ("request_type", text),
        ("state", text),
        ("reason", text),
        ("request", text),
        ("response", text),
        ("usage", text),
        ("score", pa.float64()),
        ("feedback", text),
        ("references", pa.list_(text)),
        ("metadata", text),
        ("consumed_by", text),
        ("meta", text),
    ]
    schema = pa.schema(training if what == "training" else records)
    shaped, count = (_flat(row, schema.names, what) for row in rows), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(shaped):
            try:
                writer.write_table(pa.Table.from_pylist(group, schema=schema))
            except (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError) as error:
                names = f"{group[0]['agent_record_id']} and {group[-1]['agent_record_id']}"
                raise BadRequest(
                    f"a row between {names} does not fit the columns: {error}", hint="use --format jsonl"
                ) from error
            count += len(group)
    return count


def _groups(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while group := list(islice(rows, _GROUP)):
        yield group


def _flat(row: dict[str, Any], names: list[str], what: str) -> dict[str, Any]:
    """A row with the columns of the file: times as microseconds, documents as JSON text."""
    flat = {name: row.get(name) for name in names}
    flat["created_at"] = round(row["created_at"] * 1_000_000)
    if what == "training":
        rest = {name: value for name, value in row.items() if name not in names}
        return flat | {"rest": json.dumps(rest)}
    for name in ("reason", "request", "response", "usage", "feedback", "metadata", "consumed_by", "meta"):
        flat[name] = None if flat[name] is None else json.dumps(flat[name])
    return flat
