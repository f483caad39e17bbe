"""The log of a model with many equal blocks, from the logs of the same model with a few.

Each block adds the same entries to the log, at the same places. Logs of two depths tell which and
where. The log of the second must have them twice in a row at each place, or the forecast runs the
whole model. Where two kinds of blocks alternate, or activation checkpointing takes every second
block, two are added together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import lcm
from typing import Any, NamedTuple

from torch import nn

from ddoctor.memory_tracking.blocks import rows
from ddoctor.memory_tracking.log import Entry
from ddoctor.memory_tracking.periods import Token, entries, tokens

# FSDP gathers one block ahead, and the first and the last block differ from the others.
FEWEST = 3
# A model with fewer blocks more than the two runs is run as it is: that would take hardly longer.
WORTH = 4
# A place where a log goes on as the shorter one: this many entries agree.
AGREED = 48
# What numbers the blocks differ in without being different (transformers: layer_idx).
NUMBERS = ("idx", "index", "layer_id", "number")


class Repeating(NamedTuple):
    """A row of blocks that repeat."""

    blocks: int
    period: int
    """Each block is as the one this number of places before it."""

    @property
    def depths(self) -> tuple[int, int]:
        """Return with how many blocks the model is run, so that the row ends as the whole one."""
        short = FEWEST * self.period + self.blocks % self.period
        return short, short + self.period

    @property
    def more(self) -> int:
        """Return how many periods the whole row is longer than the shorter one of ``depths``."""
        return (self.blocks - self.depths[0]) // self.period


class Insertion(NamedTuple):
    """What one more period adds, before this place of the log."""

    place: int
    added: Sequence[Token]


def repeating(model: nn.Module, every: int) -> Repeating | None:
    """Return how the blocks of the model's row repeat; None: several rows, or hardly repeated.

    ``every``: activation checkpointing takes each such block.
    """
    found = list(rows(model))
    if len(found) != 1:
        return None
    kinds = [described(one) for one in found[0]]
    alike = (
        period
        for period in range(1, len(kinds) // 2)
        if all(one == other for one, other in zip(kinds, kinds[period:], strict=False))
    )
    row = Repeating(len(kinds), lcm(next(alike, len(kinds)), every))
    return row if sum(row.depths) + WORTH <= row.blocks else None


def shorten(model: nn.Module, depth: int) -> None:
    """Leave this number of the blocks of the model's only row."""
    (row,) = rows(model)
    holder = next(
        one
        for one in model.modules()
        if isinstance(one, nn.ModuleList | nn.Sequential) and tuple(one) == tuple(row)
    )
    del holder[depth:]


def described(block: nn.Module) -> list[Any]:
    """Return all that may make one block differ from another."""
    return [
        (
            name,
            type(one),
            [
                (key, value.shape, value.dtype, value.requires_grad)
                for key, value in one._parameters.items()
                if value is not None
            ],
            [
                (key, value.shape, value.dtype)
                for key, value in one._buffers.items()
                if value is not None
            ],
            [
                (key, value)
                for key, value in vars(one).items()
                if isinstance(value, bool | int | float | str | tuple | None)
                and not any(key.endswith(number) for number in NUMBERS)
            ],
        )
        for name, one in block.named_modules()
    ]


def deeper(logs: Sequence[Sequence[Entry]], row: Repeating) -> list[Entry] | None:
    """Return the log of the whole row, from those of its ``depths``.

    None: blocks do not add the same.
    """
    short, longer = map(partial(tokens, period=row.period), logs, row.depths)
    places = _insertions(short, longer)
    if places is None or not all(_continues(short, one) for one in places):
        return None
    return entries(_repeated(short, places, row.more), row.blocks, row.period)


def _continues(short: Sequence[Token], one: Insertion) -> bool:
    """Whether the log had just the same before this place, so that it is there twice in a row."""
    place, added = one
    return list(short[max(0, place - len(added)) : place]) == list(added)


def _insertions(short: Sequence[Token], long: Sequence[Token]) -> list[Insertion] | None:
    """Return what makes the short log the long one; None: more than insertions."""
    found = []
    other = 0
    for place in range(len(short)):
        if other < len(long) and short[place] == long[other]:
            other += 1
            continue
        begin = _resumed(short[place : place + AGREED], long, other + 1)
        if begin is None:
            return None
        found.append(Insertion(place, long[other:begin]))
        other = begin + 1
    if other < len(long):
        found.append(Insertion(len(short), long[other:]))
    return found


def _resumed(rest: Sequence[Token], long: Sequence[Token], begin: int) -> int | None:
    """Return where the long log continues as ``rest`` for longest; None: nowhere."""
    best, most = None, 0
    for place in range(begin, len(long)):
        if long[place] != rest[0]:
            continue
        agreed = next(
            (
                number
                for number, (one, other) in enumerate(
                    zip(rest, long[place : place + AGREED], strict=False)
                )
                if one != other
            ),
            min(len(rest), len(long) - place),
        )
        if agreed > most:
            best, most = place, agreed
        if agreed == len(rest):
            break
    return best


def _repeated(short: Sequence[Token], places: Sequence[Insertion], times: int) -> Iterator[Token]:
    done = 0
    for place, added in places:
        yield from short[done:place]
        for _ in range(times):
            yield from added
        done = place
    yield from short[done:]
