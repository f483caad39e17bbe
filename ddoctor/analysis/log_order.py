"""What happened first, as far as the lines and time stamps of logs tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddoctor.evidence.log import Excerpt


def in_order(excerpts: Iterable[Excerpt]) -> tuple[Sequence[Excerpt], bool]:
    """The excerpts, the earliest first, and whether that order is known.

    Within a file the lines are in order. Between files only stamps tell, if all lines have one, and
    either all have a time zone or none has: the clocks of hosts count as equal.
    """
    rows = sorted(excerpts, key=lambda one: (one.file, one.line))
    if len({one.file for one in rows}) < 2:
        return rows, True
    latest = dict[str, float]()
    keys = list[tuple[float, str, int]]()
    for one in rows:
        if one.time is None or one.zoned != rows[0].zoned:
            return rows, False
        # A line below another is later, even if it comes from a host whose clock is behind.
        latest[one.file] = max(one.time, latest.get(one.file, one.time))
        keys.append((latest[one.file], one.file, one.line))
    return [one for _, one in sorted(zip(keys, rows, strict=True), key=lambda pair: pair[0])], True
