"""A log in a form in which equal blocks of a model add equal entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddoctor.memory_tracking.log import Entry

Token = tuple[Any, ...]
"""An entry that tells blocks and allocations by what came before, without numbers."""
Group = tuple[int, str, int | None]
"""Allocations that are alike: their size, kind and block."""


class _Block:
    """The block that was meant last, from which the next one is counted."""

    def __init__(self, depth: int, period: int, running: _Block | None = None) -> None:
        self.last, self._depth, self._near = 0, depth, period
        self._running = running or self

    def told(self, block: int | None) -> Token:
        """Return how to get to a block, and go there; None: outside of blocks.

        By steps from the last one, or if it is far, from the running block, or from the nearer end
        of the row.
        """
        if block is None:
            return ()
        steps, self.last = block - self.last, block
        if abs(steps) <= self._near:
            return "steps", steps
        if abs(block - self._running.last) <= self._near and self._running is not self:
            return "running", block - self._running.last
        left = self._depth - 1 - block
        return ("first", block) if block < left else ("last", left)

    def meant(self, told: Token) -> int | None:
        """Return the block that is meant, and go there."""
        if not told:
            return None
        how, number = told
        places = {
            "steps": self.last + number,
            "running": self._running.last + number,
            "first": number,
            "last": self._depth - 1 - number,
        }
        self.last = places[how]
        return self.last


class _Living:
    """The allocations that exist, each group oldest first."""

    def __init__(self, depth: int, period: int, running: _Block) -> None:
        self._groups: dict[Group, list[int]] = {}
        self._group: dict[int, Group] = {}
        self._meant = _Block(depth, period, running)

    def new(self, number: int, group: Group) -> None:
        self._group[number] = group
        self._groups.setdefault(group, []).append(number)

    def reference(self, number: int) -> Token:
        """Return its group, and its rank there from the oldest or the newest, if that is nearer."""
        size, kind, block = self._group[number]
        alike = self._groups[size, kind, block]
        rank = alike.index(number)
        nearer = rank if rank < len(alike) - 1 - rank else rank - len(alike)
        return size, kind, self._meant.told(block), nearer

    def number(self, reference: Token) -> int:
        """Return the number of this allocation."""
        size, kind, told, rank = reference
        return self._groups[size, kind, self._meant.meant(told)][rank]

    def update(self, number: int, what: str, size: int, kind: str) -> None:
        """Note what happened to it."""
        if what == "logits":
            return
        group = self._group.pop(number)
        self._groups[group].remove(number)
        before, called, block = group
        if what == "size":
            self.new(number, (size, called, block))
        elif what == "kind":
            self.new(number, (before, kind, block))


def tokens(log: Iterable[Entry], depth: int, period: int) -> list[Token]:
    """Return the log of a model with this number of blocks, without numbers.

    ``period``: each block is as the one this number of places before it, which is near. FSDP also
    gathers the next block, and frees the one before.
    """
    running, found = _Block(depth, period), list[Token]()
    living = _Living(depth, period, running)
    for what, number, size, kind, module in log:
        if what in ("operator", "step", "new"):
            path, block = _split(module)
            found.append((what, size, kind, path, running.told(block)))
            if what == "new":
                living.new(number, (size, kind, block))
        else:
            found.append((what, size, kind, living.reference(number)))
            living.update(number, what, size, kind)
    return found


def entries(found: Iterable[Token], depth: int, period: int) -> list[Entry]:
    """Return the log of these tokens with this number of blocks, of this ``period``."""
    running, log = _Block(depth, period), list[Entry]()
    living = _Living(depth, period, running)
    count = 0
    for what, size, kind, *rest in found:
        if what in ("operator", "step", "new"):
            path, told = rest
            block = running.meant(told)
            number = -1
            if what == "new":
                number, count = count, count + 1
                living.new(number, (size, kind, block))
            log.append(Entry(what, number, size, kind, path.replace("*", str(block))))
        else:
            number = living.number(rest[0])
            log.append(Entry(what, number, size, kind))
            living.update(number, what, size, kind)
    return log


def _split(module: str) -> tuple[str, int | None]:
    """Return a module's name with * for its block, and the block; None: it is in no block."""
    parts = module.split(".")
    place = next((place for place, one in enumerate(parts) if one.isdecimal()), None)
    if place is None:
        return module, None
    block = int(parts[place])
    return ".".join([*parts[:place], "*", *parts[place + 1 :]]), block
