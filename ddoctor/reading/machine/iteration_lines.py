"""The lines of mmengine, timm and others: the time of an iteration, and of its data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ddoctor.evidence.printed_figures import PhaseTimes, PrintedTimes
from ddoctor.reading.machine.kind import Kind

SECONDS = r"\d{1,7}\.\d{1,9}"
# mmengine/runner/log_processor.py and detectron2/utils/events.py smooth over 10 and 20 iterations,
# the MetricLogger of torchvision's references and CenterNet over an epoch. PARTS: of a whole.
SMOOTHED = (
    re.compile(rf"\btime: (?P<whole>{SECONDS}) {{1,9}}data_time: (?P<loader>{SECONDS})\b"),
    re.compile(
        rf"\btime: (?P<whole>{SECONDS}) {{1,9}}last_time: {SECONDS} {{1,9}}"
        rf"data_time: (?P<loader>{SECONDS})\b"
    ),
    re.compile(rf"\btime: (?P<whole>{SECONDS}) {{1,9}}data: (?P<loader>{SECONDS})\b"),
)
PARTS = re.compile(
    rf"\bData (?P<loader>{SECONDS})s ?\({SECONDS}s\) {{0,9}}\|Net (?P<rest>{SECONDS})s"
)
# pytorch/examples, imagenet; timm, train.py: of one iteration, and the means since the epoch began.
SINGLE = (
    re.compile(
        rf"\bTime {{1,9}}(?P<whole>{SECONDS}) \( {{0,9}}(?P<all>{SECONDS})\)\s{{1,9}}"
        rf"Data {{1,9}}(?P<loader>{SECONDS}) \( {{0,9}}(?P<all_loader>{SECONDS})\)"
    ),
    re.compile(
        rf"\bTime: {{1,9}}(?P<whole>{SECONDS})s,[^(]{{1,40}}\( {{0,9}}(?P<all>{SECONDS})s,"
        rf"[^D]{{1,60}}Data: {{1,9}}(?P<loader>{SECONDS}) \( {{0,9}}(?P<all_loader>{SECONDS})\)"
    ),
)
AT = re.compile(r"\[ {0,9}(\d{1,9})/\d{1,9}")
"""The number of the iteration, in the last such bracket before its time."""
FORMS = (*((form, 5) for form in (*SMOOTHED, PARTS)), *((form, 1) for form in SINGLE))
"""With the iterations that a line stands for, at least."""
EVALUATES = re.compile(r"(?i)\b(?:val|valid|validation|test|eval|evaluation)\b")


@dataclass
class _Totals:
    """Seconds of all iterations of the epochs up to a line, by the means in it.

    What is printed of single iterations misses those between the lines. With a slow loader, one
    iteration may wait for all workers, and as many as there are workers then wait for none.
    """

    count: int = 0
    whole: float = 0.0
    loader: float = 0.0
    _first: tuple[int, float, float] = (0, 0.0, 0.0)
    """At the beginning of the epoch, after its first iteration if that is printed."""
    _last: tuple[int, float, float] = (0, 0.0, 0.0)

    def add(self, at: int, whole: float, loader: float) -> None:
        """Take the means of a line: of its iteration and those before it in the epoch."""
        now = (at + 1, (at + 1) * whole, (at + 1) * loader)
        if now[0] < self._last[0]:
            self.close()
        if not at:
            # The workers start in it.
            self._first = now
        self._last = now

    def close(self) -> None:
        """Count the epoch."""
        count = self._last[0] - self._first[0]
        whole, loader = (b - a for a, b in zip(self._first[1:], self._last[1:], strict=True))
        if count > 0 and whole > 0:
            self.count += count
            self.whole += whole
            self.loader += min(max(loader, 0.0), whole)
        self._first = self._last = (0, 0.0, 0.0)


def _read(lines: Sequence[str]) -> Iterator[PrintedTimes]:
    totals, count, wholes, loaders = _Totals(), 0, [], []
    for line in lines:
        if EVALUATES.search(line):
            continue
        for form, each in FORMS:
            if match := form.search(line):
                found = {name: float(value) for name, value in match.groupdict().items()}
                loaders.append(found["loader"])
                wholes.append(found.get("whole") or found["loader"] + found.get("rest", 0.0))
                count += each
                if form in SINGLE and (places := AT.findall(line[: match.start()])):
                    totals.add(int(places[-1]), found["all"], found["all_loader"])
                break
    totals.close()
    tool = "the times in the log"
    if totals.count:
        whole, loader = totals.whole, totals.loader
        table = PhaseTimes(tool=tool, count=totals.count, in_all=True, whole=whole, loader=loader)
        yield PrintedTimes(tables=(table,))
    elif wholes and (whole := median(wholes)):
        table = PhaseTimes(tool=tool, count=count, whole=whole, loader=min(median(loaders), whole))
        yield PrintedTimes(tables=(table,))


KIND = Kind(
    name="times of iterations",
    holds=("data_time: ", "data: ", "|net ", "data  ", "\tdata "),
    begins=re.compile(
        ".{0,400}?(?:"
        + "|".join(re.sub(r"\?P<\w+>", "?:", form.pattern) for form, _ in FORMS)
        + ")"
    ),
    goes_on=re.compile(r"(?!)"),
    read=_read,
    scattered=True,
)
