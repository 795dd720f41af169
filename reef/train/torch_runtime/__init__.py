"""The embedded engine: a serve child, a train child, and the runtime that drives both. Importing loads no torch."""
