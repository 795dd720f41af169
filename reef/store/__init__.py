"""SQLite storage: one file, one writer thread with group commit, migrations, bodies kept once.

Knows nothing of HTTP, recipes or models. Used by records, releases and scenario.
"""

from reef.store.database import Store

__all__ = ["Store"]
