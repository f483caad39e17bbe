"""The lengths of a dataset's samples: what padding adds to a batch, and what packing saves."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.plan import SampleLengths
from ddoctor.forecast.options import PlanRequest

MOST_BYTES = 256 * 2**20
"""Bytes of a file: the lengths of 40 million samples."""
MOST_CHARACTERS = 2**20
"""Of a line, which may have the text of its sample as well."""
LONGEST = 10**8
NAME = "length"


@dataclass(frozen=True)
class Lengths:
    """The number of samples of each length in tokens."""

    counts: Counter[int]

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return max(self.counts)

    @property
    def mean(self) -> float:
        """Tokens of a sample in the mean."""
        return sum(size * count for size, count in self.counts.items()) / self.counts.total()

    def cut(self, sequence: int | None) -> Lengths:
        """Return the lengths where longer samples are cut to this one; None: none is."""
        if sequence is None:
            return self
        found = Counter[int]()
        for size, count in self.counts.items():
            found[min(size, sequence)] += count
        return Lengths(found)

    def padded(self, rows: int) -> float:
        """Return the mean length of the longest of this number of samples, drawn at random.

        The sum over lengths l of l × (F(l)^rows - F(l - 1)^rows), F the share of samples that are
        at most that long.
        """
        total, below, found = self.counts.total(), 0, 0.0
        for size in sorted(self.counts):
            upto = below + self.counts[size]
            found += size * ((upto / total) ** rows - (below / total) ** rows)
            below = upto
        return found

    def of_batches(self, sequence: int | None, rows: int, *, packed: bool) -> SampleLengths:
        """Return what batches of this number of rows have; ``packed``: samples fill whole rows."""
        kept = self.cut(sequence)
        return SampleLengths(
            samples=self.counts.total(),
            mean=kept.mean,
            longest=kept.longest,
            cut=sum(count for size, count in self.counts.items() if size > kept.longest),
            padded=kept.padded(rows),
            packed=packed,
        )


def applied(wanted: PlanRequest, lengths: SampleLengths) -> PlanRequest:
    """Return the options for the longest sample, or for the full rows that packed samples fill."""
    if not lengths.packed:
        return replace(wanted, sequence=lengths.longest)
    sequence, samples = wanted.sequence or lengths.longest, wanted.samples
    if samples is not None:
        samples = ceil(samples * lengths.mean / sequence)
    return replace(wanted, sequence=sequence, samples=samples)


def check(lengths: SampleLengths, model: str, most: int | None) -> None:
    """Check that a model allows the longest sample.

    Raises:
        DoctorError: it does not.
    """
    if most is not None and lengths.longest > most:
        raise DoctorError(
            f"--lengths: the longest sample has {lengths.longest} tokens, and {model} allows at "
            f"most {most}: cut longer ones with --sequence {most}"
        )


def read(path: Path) -> Lengths:
    """Return the lengths of a file: a number per line, or a JSON object with one.

    Raises:
        DoctorError: it cannot be read, is too large, or a line has no length.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise DoctorError(f"--lengths {path}: it is no regular file")
    try:
        counts = Counter(_lengths(path))
    except OSError as error:
        raise DoctorError(f"--lengths {path}: {error.strerror}") from error
    if not counts:
        raise DoctorError(f"--lengths {path}: it is empty: write one length in tokens per line")
    return Lengths(counts)


def _lengths(path: Path) -> Iterator[int]:
    read = number = 0
    with open(path, "rb", opener=without_waiting) as file:
        while line := file.readline(MOST_CHARACTERS + 1):
            number, read = number + 1, read + len(line)
            if read > MOST_BYTES or len(line) > MOST_CHARACTERS:
                what = "file" if read > MOST_BYTES else "line"
                raise DoctorError(f"--lengths {path}:{number}: the {what} is too long")
            if not line.strip():
                continue
            length = _length(line)
            if length is None or not 0 < length <= LONGEST:
                raise DoctorError(
                    f"--lengths {path}:{number}: write a length in tokens, or JSON such as "
                    '{"length": 512}'
                )
            yield length


def _length(line: bytes) -> int | None:
    """Return the number of a line, that of its key, or its only one; None: there is no such."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        numbers = [one for one in found.values() if type(one) is int]
        found = found.get(NAME, numbers[0] if len(numbers) == 1 else None)
    return found if type(found) is int else None
