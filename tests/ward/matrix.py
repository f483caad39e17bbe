"""`python -m tests.ward.matrix [--repeat 3] [WORD]`: all cases, and a page of what was told.

The page goes to ``docs/measurements/``; what was told wrongly is kept, with its evidence, in the
folder that ``--keep`` names.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ward.case import Case
from tests.ward.cases import CASES
from tests.ward.running import STEPS, Impossible, examine

PAGES = Path(__file__).parents[2] / "docs" / "measurements"
NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one case once."""

    case: Case
    told: str
    """The cause that was told first, of a sound case the first above a note; or ``nothing``."""
    fault: str
    """What is wrong with it; empty: nothing."""
    skipped: str = ""
    """Why it could not be run; empty: it was."""


def main(arguments: Sequence[str]) -> int:
    """Run all, write the page, and say by the exit code whether all was told rightly."""
    options = argparse.ArgumentParser(prog="python -m tests.ward.matrix")
    options.add_argument("word", nargs="?", default="", help="in the names of the cases to run")
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--keep", type=Path, help="where to keep what was told wrongly")
    options.add_argument("--page", type=Path, default=PAGES / f"{date.today()}-ward.md")
    chosen = options.parse_args(arguments)
    runs: list[Run] = []
    for turn in range(chosen.repeat):
        for case in CASES:
            if chosen.word in f"{case.script}: {case.name}":
                runs.append(_run(case, turn, chosen.keep))
                told = runs[-1].skipped or runs[-1].fault or "ok"
                print(f"{turn + 1} {case.script}: {case.name}: {told}", flush=True)
                chosen.page.write_text("\n".join(page(runs)) + "\n")
    return int(any(run.fault for run in runs))


def _run(case: Case, turn: int, keep: Path | None) -> Run:
    with TemporaryDirectory() as name:
        folder = Path(name)
        try:
            examined = examine(case, folder)
        except Impossible as error:
            return Run(case=case, told=NOTHING, fault="", skipped=str(error))
        except subprocess.TimeoutExpired as error:
            return Run(case=case, told=NOTHING, fault=f"not done in {error.timeout:.0f} s")
        fault = examined.fault_of(case)
        if fault and keep is not None:
            (folder / "output.txt").write_text(examined.output)
            shutil.copytree(
                folder, keep / f"{case.script}, {case.name}, {turn}", dirs_exist_ok=True
            )
    told = [examined.first] if case.sick else examined.alarms
    return Run(case=case, told=next(filter(None, told), NOTHING), fault=fault)


def page(runs: Sequence[Run], command: str = "python -m tests.ward.matrix") -> Iterator[str]:
    """What was told of the runs of this command, as Markdown."""
    done = [run for run in runs if not run.skipped]
    yield f"# The ward, {date.today()}: {len(done)} runs"
    yield ""
    yield (
        f"{os.cpu_count()} CPUs, no GPU, torch {version('torch')}, Python "
        f"{platform.python_version()}; two ranks over gloo, {STEPS} judged steps each "
        f"(`{command}`). Load over a minute at the end: "
        f"{os.getloadavg()[0]:.1f}."
    )
    yield ""
    yield "| runs | | told rightly |"
    yield "| --- | ---: | ---: |"
    for name, some in (
        ("sound: no warning and no error", [run for run in done if not run.case.sick]),
        *(
            (f"sick, the step {dose:g} times as long", [r for r in done if r.case.dose == dose])
            for dose in sorted({run.case.dose for run in done if run.case.dose}, reverse=True)
        ),
        ("sick, no matter of degree", [r for r in done if r.case.sick and r.case.dose is None]),
    ):
        right = sum(not run.fault for run in some)
        share = f" ({right / len(some):.0%})" if some else ""
        yield f"| {name} | {len(some)} | {right}{share} |"
    named = [run for run in done if run.case.rank is not None and run.told in run.case.roots]
    right = sum(not run.fault for run in named)
    yield f"| the cause is right, and a rank is to be named | {len(named)} | {right} |"
    yield from _confusion(done)
    yield from _wrong(done)
    skipped = {run.case.name: run.skipped for run in runs if run.skipped}
    if skipped:
        yield from ("", "## Not run", "")
        yield from (f"- {name}: {why}" for name, why in skipped.items())


def _confusion(runs: Sequence[Run]) -> Iterator[str]:
    """For each cause that was provoked, which was told first."""
    yield from (
        "",
        "## What was told first",
        "",
        "| provoked | runs | told |",
        "| --- | ---: | --- |",
    )
    by_cause: dict[str, Counter[str]] = {}
    for run in runs:
        provoked = run.case.roots[0] if run.case.sick else NOTHING
        told = provoked if run.told in run.case.roots else run.told
        by_cause.setdefault(provoked, Counter())[told] += 1
    for cause, counts in sorted(by_cause.items()):
        words = ", ".join(f"{name} × {count}" for name, count in counts.most_common())
        yield f"| {cause} | {counts.total()} | {words} |"


def _wrong(runs: Sequence[Run]) -> Iterator[str]:
    yield from ("", "## What was told wrongly", "")
    wrong = [run for run in runs if run.fault]
    counted = Counter(
        (f"`{run.case.script}.py`", run.case.name, " or ".join(run.case.roots), run.fault)
        for run in wrong
    )
    if not wrong:
        yield "Nothing."
        return
    yield "| script | fault | expected | what came | times |"
    yield "| --- | --- | --- | --- | ---: |"
    for (script, name, roots, fault), times in counted.items():
        yield f"| {script} | {name} | {roots or NOTHING} | {fault} | {times} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
