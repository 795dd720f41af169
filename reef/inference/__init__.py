"""Answers model calls: provider pass-through, wire dialects, stream assembly. Knows nothing of records or training."""
