"""Loss families by name: what each needs, what it forbids, and how Slime is told."""
