"""RecordStore: append, resolve, page, mark. The only package that knows the records table.

Knows nothing of recipes, releases' files or HTTP. Called by the gateway, the report route, the trainer and readers.
"""

from reef.records.payload import StoredPayload
from reef.records.store import RecordStore
from reef.records.values import Exchange, Mark, ResponseReader, Row

__all__ = ["Exchange", "Mark", "RecordStore", "ResponseReader", "Row", "StoredPayload"]
