"""Seals of reasoning that one provider signed or encrypted, carried through the fields of another dialect.

A seal is never made here: it is handed back, unread, to the provider it came from, and left out for any other.
"""

from __future__ import annotations

_MARK = "reef."


def carry(route: str, seal: str) -> str:
    """The seal of a provider of dialect ``route``, as it stands in another dialect's field."""
    return f"{_MARK}{route}.{seal}"


def carried(text: str, route: str) -> tuple[str, str]:
    """The seal in a field of dialect ``route``, and the dialect of the provider it belongs to."""
    if text.startswith(_MARK):
        owner, _, seal = text[len(_MARK) :].partition(".")
        return seal, owner
    return text, route if text else ""
