"""The command line: one module per noun, thin over the client."""
