"""`python -m tests.ward.drawn SEED [--case N] [--attach]`: what is told of drawn scripts.

The page goes to standard output; what was told wrongly is kept, with its script and its report.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.ward.drawn.draw import draw
from tests.ward.drawn.telling import attached, line_told, recorded
from tests.ward.matrix import NOTHING, Run, page


def main(arguments: list[str]) -> int:
    """Run the patients of a seed; the exit code says whether all was told rightly."""
    options = argparse.ArgumentParser(prog="python -m tests.ward.drawn")
    options.add_argument("seed", type=int)
    options.add_argument("--case", type=int, help="only this one")
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--attach", action="store_true", help="10 s of the live run instead")
    options.add_argument("--keep", type=Path, default=Path("build/ward"))
    chosen = options.parse_args(arguments)
    numbers = range(chosen.count) if chosen.case is None else [chosen.case]
    runs, lines = [], []
    for number in numbers:
        patient, line = draw(chosen.seed, number, live=chosen.attach), ""
        with TemporaryDirectory() as name:
            folder = Path(name)
            case = patient.at(folder)
            try:
                examined = (attached if chosen.attach else recorded)(case, folder)
            except subprocess.TimeoutExpired as error:
                run = Run(
                    case=patient.case, told=NOTHING, fault=f"not done in {error.timeout:.0f} s"
                )
            else:
                fault = examined.fault_of(case)
                told = [examined.first] if case.sick else examined.alarms
                run = Run(case=patient.case, told=next(filter(None, told), NOTHING), fault=fault)
                if patient.here and run.told in case.roots:
                    lines.append(line_told(examined, patient.here))
                    line = f", line {'right' if lines[-1] else 'wrong'}"
                (folder / "output.txt").write_text(examined.output)
            runs.append(run)
            words = f"{case.name} ×{case.dose} ({', '.join(patient.parts[:3])})"
            print(f"{words}: {run.fault or 'ok'}{line}", file=sys.stderr, flush=True)
            if run.fault or line.endswith("wrong"):
                how = "attach" if chosen.attach else "run"
                kept = chosen.keep / f"{chosen.seed}-{number}-{how}"
                shutil.copytree(folder, kept, dirs_exist_ok=True)
    print("\n".join(page(runs, f"python -m tests.ward.drawn {chosen.seed}")))
    print(f"\nThe user's line: {sum(lines)} of {len(lines)}.")
    return int(any(run.fault for run in runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
