"""How often `ddoctor diagnose` tells the confirmed cause of real cases: `FILE` of lines of JSON.

A line has ``id``, ``evidence`` (what somebody posted), ``cause_class`` (a name of the catalogue, or
``none``) and ``decidable`` (whether the evidence says the cause). Printed are, of the decidable
cases, those told rightly first and among the first three, those told wrongly with confidence, and
each that is wrong. Exit code 1: a limit is not reached.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.models import Confidence, Finding, Severity
from ddoctor.reading import reader

RIGHT, WRONG = 0.90, 0.03
"""At least, and at most, of the decidable cases."""
NOTHING, NOT_READ, CRASHED = "nothing", "not read", "crashed"
NONE = "none"


@dataclass(frozen=True)
class Told:
    """What was told about a case."""

    name: str
    cause: str
    findings: Sequence[Finding]
    failure: str = ""

    @property
    def first(self) -> str:
        """The first cause; a note about a healthy run is none."""
        if self.failure:
            return self.failure
        found = self.findings if self.cause != NONE else self.alarms
        return found[0].cause if found else NOTHING

    @property
    def alarms(self) -> Sequence[Finding]:
        """The findings that change the exit code."""
        return [one for one in self.findings if one.severity > Severity.NOTE]

    @property
    def right(self) -> bool:
        """Whether the first cause is the confirmed one."""
        return self.first == (self.cause if self.cause != NONE else NOTHING)

    @property
    def among_three(self) -> bool:
        """Whether the confirmed cause is one of the first three."""
        return self.right or self.cause in [one.cause for one in self.findings[:3]]

    @property
    def misled(self) -> bool:
        """Whether another cause comes first, and not only as possible."""
        alarms = self.alarms
        return not self.right and bool(alarms) and alarms[0].confidence > Confidence.POSSIBLE


def told(name: str, cause: str, evidence: str) -> Told:
    """Diagnose one evidence as a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "evidence.txt")
        path.write_text(evidence)
        try:
            read, _ = reader.read([path])
        except DoctorError:
            return Told(name, cause, (), NOT_READ)
        report = engine.examine(read, "diagnose")
    broken = [one for one in report.crashed if one.check != "judging the run"]
    return Told(name, cause, report.findings, CRASHED if broken else "")


def main(arguments: Sequence[str]) -> int:
    """Diagnose the cases of a file, and print what was told."""
    options = ArgumentParser(prog="python -m benchmarks.cases")
    options.add_argument("file", type=Path)
    options.add_argument("--all", action="store_true", help="also those that are not decidable")
    chosen = options.parse_args(arguments)
    rows = [json.loads(line) for line in chosen.file.read_text().splitlines()]
    rows = [row for row in rows if row["evidence"]]
    decidable = [row for row in rows if row.get("decidable") is True]
    given = rows if chosen.all else decidable
    results = [told(row["id"], row["cause_class"], row["evidence"]) for row in given]
    for one in results:
        if not one.right:
            kind = "WRONG" if one.misled else "missed"
            print(f"{kind:7} {one.name:8} {one.cause:32} told {one.first}")
    for cause, count in sorted(Counter(one.cause for one in results).items()):
        right = sum(one.right for one in results if one.cause == cause)
        print(f"  {cause:36} {right} of {count}")
    count = len(results)
    right, three = sum(one.right for one in results), sum(one.among_three for one in results)
    misled = sum(one.misled for one in results)
    print(
        f"{count} cases: first right {right} ({right / count:.0%}), among the first three {three} "
        f"({three / count:.0%}), wrong with confidence {misled} ({misled / count:.1%})"
    )
    return int(right < RIGHT * count or misled > WRONG * count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
