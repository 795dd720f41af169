"""The versioned files of one agent's harness: values, adapters, rendering, installing. Knows no daemon and no recipe."""
