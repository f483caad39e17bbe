"""`python -m tests.ward.doses [WORD]`: how many times as long a step takes with each fault.

The scripts run without ddoctor, in turns: sound, sick, sick, sound; the better of two counts.
"""

from __future__ import annotations

import sys

from tests.ward.case import Case
from tests.ward.cases import CASES
from tests.ward.running import Impossible, sound_step_seconds, step_seconds


def main(word: str = "") -> int:
    """Print a line for each case whose fault is a matter of speed and whose name has this word."""
    for case in CASES:
        if case.dose is not None and word in f"{case.script}: {case.name}":
            print(f"{case.script}: {case.name:50} {told(case)}", flush=True)
    return 0


def told(case: Case) -> str:
    """The dose as it is stated and as it is."""
    try:
        sound, sick = sound_step_seconds(case), step_seconds(case)
        sick, sound = min(sick, step_seconds(case)), min(sound, sound_step_seconds(case))
    except Impossible as error:
        return str(error)
    return (
        f"{case.dose:.2f} stated, {sick / sound:.2f} ({1000 * sound:.1f} to {1000 * sick:.1f} ms)"
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
