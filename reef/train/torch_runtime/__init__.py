"""The embedded engine: a serve child and a train child, and the runtime that drives both. Importing it loads no torch."""
