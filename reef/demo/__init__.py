"""The demo: a small model visibly improves from scored use. Everything here talks to the service as any client does."""
