"""UnitPool: accepted units in arrival order, groups, reservation. The part that pairing and derived engines share.

Knows nothing of reports or judging.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from reef.train.processors.base import RecipeBug
from reef.train.types import TrainingBatch


@dataclass(frozen=True, slots=True)
class Accepted:
    """One accepted value with the records behind it. ``order`` is the report's place of arrival."""

    order: int
    owner_id: str
    record_ids: tuple[str, ...]
    value: Any
    slot: Hashable | None = None
    release_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """What is batched together: one accepted value, or the complete group of ``key``, slots and then arrival in order."""

    candidates: tuple[Accepted, ...]
    key: Hashable | None = None

    @property
    def order(self) -> int:
        """Place in the queue: that of its earliest member."""
        return min(candidate.order for candidate in self.candidates)


class Group(Enum):
    """What ``group_ready`` may answer beside True and False."""

    DISCARD = "discard"
    """The group is worthless: release its members and refuse late ones."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A batch that was handed out and not acknowledged yet."""

    batch: TrainingBatch
    units: tuple[Unit, ...]

    @property
    def owners(self) -> tuple[str, ...]:
        """The reports (or derived items) in the batch."""
        return tuple(candidate.owner_id for unit in self.units for candidate in unit.candidates)

    @property
    def record_ids(self) -> tuple[str, ...]:
        """Reports first, then the inferences they used, each once."""
        used = (record_id for unit in self.units for candidate in unit.candidates for record_id in candidate.record_ids)
        return tuple(dict.fromkeys((*self.owners, *used)))


class UnitPool:
    """Holds units until ``batch_size`` values are complete. ``group_ready(key, members)`` decides when a group is.

    Of the processor's ``config`` it reads ``batch_size``, ``first_batch`` (the number of the next one) and ``reserved``
    (owners a dead trainer had reserved together).
    With ``reopen_groups`` a complete group's key may begin a new group; without, late members are refused.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        group_ready: Callable[[Hashable, Sequence[Accepted]], bool | Group],
        *,
        ordered_groups: bool,
        reopen_groups: bool,
    ) -> None:
        self.batch_size = int(config.get("batch_size", 1))
        self._group_ready = group_ready
        self._ordered_groups = ordered_groups
        self._reopen_groups = reopen_groups
        self.partial = False
        self._prefer = frozenset(config.get("reserved", ()))
        self._number = int(config.get("first_batch", 1))
        self._units: list[Unit] = []
        self._groups: dict[Hashable, list[Accepted]] = {}
        self._closed: dict[Hashable, str] = {}
        self.reserved: Reservation | None = None

    def add(self, accepted: Accepted, key: Hashable | None) -> tuple[str | None, tuple[Accepted, ...]]:
        """Take a value. Returns a reason why it is refused (or None), and the members of a group that was discarded."""
        if key is None:
            self._insert(Unit((accepted,)))
            return None, ()
        if key in self._closed:
            return self._closed[key], ()
        members = self._groups.setdefault(key, [])
        if accepted.slot is not None and any(member.slot == accepted.slot for member in members):
            return f"slot_taken: slot {accepted.slot!r} of group {key!r} has its report", ()
        members.append(accepted)
        members.sort(key=_slot_order)
        verdict = self._group_ready(key, tuple(members))
        if verdict is Group.DISCARD:
            del self._groups[key]
            self._closed[key] = f"group_discarded: group {key!r} was discarded"
            return None, tuple(members)
        if verdict:
            del self._groups[key]
            if not self._reopen_groups:
                self._closed[key] = f"group_closed: group {key!r} is complete"
            self._insert(Unit(tuple(members), key))
        return None, ()

    def remove(self, gone: Callable[[Accepted], bool]) -> list[Accepted]:
        """Take out every value for which ``gone`` holds (not from a reserved batch); a group it leaves is open again."""
        removed: list[Accepted] = []
        for unit in list(self._units):
            lost = [candidate for candidate in unit.candidates if gone(candidate)]
            if not lost:
                continue
            removed += lost
            self._units.remove(unit)
            if unit.key is not None:
                self._closed.pop(unit.key, None)
                kept = [candidate for candidate in unit.candidates if candidate not in lost]
                self._groups[unit.key] = kept + self._groups.get(unit.key, [])
        for key, members in list(self._groups.items()):
            lost = [member for member in members if gone(member)]
            removed += lost
            self._groups[key] = [member for member in members if member not in lost]
            if not self._groups[key]:
                del self._groups[key]
        return removed

    def have(self) -> int:
        """Complete values that the next batch could take now."""
        return sum(len(unit.candidates) for unit in self._available())

    def full(self) -> bool:
        """True when a batch can be made: ``batch_size`` values, or any at all after a flush (``partial``)."""
        return bool(self._preferred()) or self.have() >= (1 if self.partial else self.batch_size)

    def pending(self) -> int:
        """Values of groups that are not complete."""
        return sum(len(members) for members in self._groups.values())

    def reserve(self, make_batch: Callable[[Sequence[Unit], int], TrainingBatch]) -> Reservation | None:
        """The reserved batch, made from the first units when there is none yet; None while too few are complete."""
        if self.reserved is None and self.full():
            taken = self._preferred()
            for unit in self._available() if not taken else ():
                taken.append(unit)
                if sum(len(one.candidates) for one in taken) >= self.batch_size:
                    break
            self._prefer = frozenset()
            self.reserved = Reservation(make_batch(taken, self._number), tuple(taken))
            gone = set(map(id, taken))  # comparing units would compare their values
            self._units = [unit for unit in self._units if id(unit) not in gone]
            self.partial = False
        return self.reserved

    def holds(self, batch_id: str) -> Reservation:
        """The reservation of ``batch_id``; raises RecipeBug when it is not the reserved one."""
        if self.reserved is None or self.reserved.batch.batch_id != batch_id:
            raise RecipeBug(f"batch {batch_id!r} is not reserved")
        return self.reserved

    def settle(self, batch_id: str) -> Reservation:
        """The reserved batch is over; raises RecipeBug when ``batch_id`` is not the reserved one."""
        if self.reserved is None or self.reserved.batch.batch_id != batch_id:
            raise RecipeBug(f"batch {batch_id!r} is not reserved")
        done, self.reserved = self.reserved, None
        self._number += 1
        return done

    def _insert(self, unit: Unit) -> None:
        insort(self._units, unit, key=lambda one: one.order)

    def _preferred(self) -> list[Unit]:
        """The units of the batch that was reserved before a restart, once all of them are here again."""
        if not self._prefer:
            return []
        chosen = [unit for unit in self._units if {one.owner_id for one in unit.candidates} <= self._prefer]
        back = {one.owner_id for unit in chosen for one in unit.candidates}
        return chosen if back == self._prefer else []

    def _available(self) -> list[Unit]:
        if not self._ordered_groups or not self._groups:
            return self._units
        barrier = min(member.order for members in self._groups.values() for member in members)
        return [unit for unit in self._units if unit.order < barrier]


def _slot_order(member: Accepted) -> tuple[str, int]:
    return ("" if member.slot is None else repr(member.slot).rjust(24, "0"), member.order)
