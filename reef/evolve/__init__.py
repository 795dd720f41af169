"""Evolves a harness: proposals, screens, episodes of agents in sandboxes, and the backend that makes a step of them."""
