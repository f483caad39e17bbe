"""The time stamps at the beginnings of lines, in the forms of loggers."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

LONGEST = 200
"""Bytes of a line in which its stamp begins."""
MONTHS = (b"", *b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())
# The groups of each form are year, month and day. An empty group: no year, or the fourth is it.
CLOCK = rb"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
FORMS = (
    # ISO 8601, as Python's logging, docker and torchelastic write it; year, month, day.
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T _]",
    # transformers and accelerate: month, day, year.
    rb"()(\d\d)/(\d\d)/(\d{4}),? +(?:- )?",
    # glog in torch's C++, and vLLM: month and day.
    rb"()\[?[EWIF](\d\d)(\d\d) +",
    rb"()(\d\d)-(\d\d) ",
    # syslog and dmesg -T: the name of the month.
    rb"()([A-Z][a-z]{2}) +(\d{1,2}) ",
)
STAMP = re.compile(
    rb"(?<![\w.-])(?:" + rb"|".join(FORMS) + rb")" + CLOCK + rb"( ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    rb"(?: (\d{4})\b)?"
)
# A word of a sentence before it: then the time is one that the sentence is about.
SENTENCE = re.compile(rb"(?:^| )(?!time\b)[a-z]{3,} ")
LEAP = 2000
"""A year that has each day, for stamps without a year."""


class Stamp(NamedTuple):
    """What the stamp of a line says."""

    year: int
    """0: it has none."""
    when: datetime
    """By its own clock; in a leap year where it has no year."""
    ahead: timedelta | None
    """How far its zone is ahead of UTC; None: it has no zone."""

    def seconds(self, year: int) -> float | None:
        """Seconds since 1970, in UTC; ``year``: where it has none. None: no such day since then."""
        try:
            when = self.when.replace(year=self.year or year, tzinfo=timezone.utc)
        except ValueError:
            return None
        seconds = (when - (self.ahead or timedelta())).timestamp()
        return seconds if seconds >= 0 else None


def stamp_of(line: bytes) -> Stamp | None:
    """The stamp that a line begins with, after the prefixes of its writer; None: none."""
    match = STAMP.search(line, 0, LONGEST)
    if match is None or SENTENCE.search(line, 0, match.start()):
        return None
    *date, hour, minute, second, fraction, zone, late = match.groups()
    told = [one for one in date if one is not None]
    year, month, day = told[:3]
    year = year or (told[3] if len(told) > 3 else b"") or late or b"0"
    try:
        number = int(month) if month.isdigit() else MONTHS.index(month)
        when = datetime(
            int(year) or LEAP, number, int(day), int(hour), int(minute), int(second)
        ) + timedelta(seconds=float(b"0." + (fraction or b"0")))
    except (ValueError, OverflowError):
        return None
    return Stamp(int(year), when, _ahead(zone))


def _ahead(zone: bytes | None) -> timedelta | None:
    digits = re.sub(rb"[^\d]", b"", zone or b"")
    if not digits:
        return timedelta() if zone else None
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -ahead if b"-" in (zone or b"") else ahead
