"""How request fields are read: a value of the right type, or a 400 that names the field. Knows no dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from reef.errors import BadRequest


def refuse(field_name: str, why: str) -> NoReturn:
    """A 400 that names the field."""
    raise BadRequest(f"{field_name}: {why}", field=field_name, code="invalid_request")


class Fields:
    """One JSON object of a request, read field by field; it knows what nobody asked for. Null counts as absent."""

    def __init__(self, body: Mapping[str, Any], path: str = "") -> None:
        self._body = body
        self._path = path
        self._read: set[str] = set()
        self._inner: list[Fields] = []

    def at(self, name: str) -> str:
        """The field's full name."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """The field as it is."""
        self._read.add(name)
        return self._body.get(name)

    def inner(self, name: str) -> Fields:
        """The object under ``name``, empty when absent."""
        found = Fields(mapping(self.get(name), self.at(name)), self.at(name))
        self._inner.append(found)
        return found

    def number(self, name: str) -> int | float | None:
        """A number."""
        value = self.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            refuse(self.at(name), "must be a number")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number."""
        value = self.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            refuse(self.at(name), "must be a whole number")
        return value

    def passed_over(self, names: Iterable[str]) -> None:
        """Fields that are known, and whose meaning is lost on nobody."""
        self._read.update(names)

    def unread(self) -> list[str]:
        """The names of what was given and not asked for, inner objects included."""
        left = [self.at(name) for name, value in self._body.items() if name not in self._read and value is not None]
        return left + [name for one in self._inner for name in one.unread()]


def texts(value: Any, name: str) -> tuple[str, ...]:
    """A string or a list of strings; empty strings are dropped."""
    items = [value] if isinstance(value, str) else value or []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        refuse(name, "must be a string or a list of strings")
    return tuple(item for item in items if item)


def sequence(value: Any, name: str) -> list[Any]:
    """A list field; null counts as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(name, "must be a list")
    return value


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """An object field; null counts as empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(name, "must be an object")
    return value


def string(value: Any, name: str) -> str:
    """A text field; null counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        refuse(name, "must be a string")
    return value
