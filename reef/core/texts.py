"""Texts that strangers wrote: what a client, a provider, a model or code that is not ours said."""


def writable(text: str) -> str:
    """``text`` as it can be written and sent: halves of surrogate pairs, which UTF-8 has no form for, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
