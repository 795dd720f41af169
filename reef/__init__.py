"""Reef: an agent gets better from being used. Importing this package does nothing."""

__version__ = "0.1.0"
