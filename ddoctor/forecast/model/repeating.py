"""The log of a model with many equal blocks, from the logs of the same model with a few.

Each block adds the same entries to the log, at the same places. Logs of three depths in a row tell
which and where; the third must come out as the other two say, entry by entry, or the forecast runs
the whole model. Where the same kind of step has come out, with other samples, two are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import nn

from ddoctor.memory_tracking.blocks import rows
from ddoctor.memory_tracking.log import Entry
from ddoctor.memory_tracking.periods import Token, entries, tokens

# FSDP gathers one block ahead, and the first and the last block differ from the others.
FEWEST = 3
DEPTHS = (FEWEST, FEWEST + 1, FEWEST + 2)
# Fewer blocks are run as they are: the logs of three depths would take hardly less.
WORTH = sum(DEPTHS) + 4
# A place where a log goes on as the shorter one: this many entries agree.
AGREED = 48
# What numbers the blocks differ in without being different (transformers: layer_idx).
NUMBERS = ("idx", "index", "layer_id", "number")


class Insertion(NamedTuple):
    """What one more block adds, before this place of the log."""

    place: int
    added: Sequence[Token]


def equal_blocks(model: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """Return the row of the model's blocks; None: it has several, or they differ."""
    found = list(rows(model))
    if len(found) != 1 or len(found[0]) < WORTH:
        return None
    row = found[0]
    holder = next(
        one
        for one in model.modules()
        if isinstance(one, nn.ModuleList | nn.Sequential) and tuple(one) == tuple(row)
    )
    # A model may choose by the kinds that its config lists for layers.
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if len(set(getattr(text, "layer_types", None) or ())) > 1:
        return None
    first = described(row[0])
    return holder if all(described(one) == first for one in row[1:]) else None


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


def deeper(logs: Sequence[Sequence[Entry]], depth: int) -> list[Entry] | None:
    """Return the log with this number of blocks, from those of ``DEPTHS``, or of the first two.

    None: the third does not come out as the first two say.
    """
    short, middle, *more = map(tokens, logs, DEPTHS)
    places = _insertions(short, middle)
    if places is None or any(list(_repeated(short, places, 2)) != long for long in more):
        return None
    return entries(_repeated(short, places, depth - FEWEST), depth)


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
