"""Values only: records, reports, artifacts. Standard library only, no I/O. Everybody may import it."""
