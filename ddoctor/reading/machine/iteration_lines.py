"""The lines of mmengine, timm and others: the time of an iteration, and of its data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
# pytorch/examples, imagenet; timm, train.py: of one iteration.
SINGLE = (
    re.compile(
        rf"\bTime {{1,9}}(?P<whole>{SECONDS}) \( {{0,9}}{SECONDS}\)\s{{1,9}}"
        rf"Data {{1,9}}(?P<loader>{SECONDS}) \("
    ),
    re.compile(
        rf"\bTime: {{1,9}}(?P<whole>{SECONDS})s,.{{1,90}}Data: {{1,9}}(?P<loader>{SECONDS}) \("
    ),
)
FORMS = (*((form, 5) for form in (*SMOOTHED, PARTS)), *((form, 1) for form in SINGLE))
"""With the iterations that a line stands for, at least."""
EVALUATES = re.compile(r"(?i)\b(?:val|valid|validation|test|eval|evaluation)\b")


def _read(lines: Sequence[str]) -> Iterator[PrintedTimes]:
    count, wholes, loaders = 0, [], []
    for line in lines:
        if EVALUATES.search(line):
            continue
        for form, each in FORMS:
            if match := form.search(line):
                found = {name: float(value) for name, value in match.groupdict().items()}
                loaders.append(found["loader"])
                wholes.append(found.get("whole") or found["loader"] + found.get("rest", 0.0))
                count += each
                break
    if wholes and median(wholes):
        yield PrintedTimes(
            tables=(
                PhaseTimes(
                    tool="the times in the log",
                    count=count,
                    whole=median(wholes),
                    loader=min(median(loaders), median(wholes)),
                ),
            )
        )


KIND = Kind(
    name="times of iterations",
    holds=("data_time: ", "data: ", "|net ", "data  "),
    begins=re.compile(
        ".{0,400}?(?:"
        + "|".join(re.sub(r"\?P<\w+>", "?:", form.pattern) for form, _ in FORMS)
        + ")"
    ),
    goes_on=re.compile(r"(?!)"),
    read=_read,
    scattered=True,
)
