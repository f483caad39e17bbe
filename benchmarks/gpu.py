"""Everything that needs a GPU, in one call; the figures go to docs/measurements/.

``make gpu`` runs it. It runs the whole of ``ddoctor doctor`` on the machine's GPUs, the all-reduce
benchmark, the forecasts of ``ddoctor plan`` beside trainings, bare and recorded trainings in turns,
and trainings with a slow loader; it writes what they said, with date and hardware.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from statistics import median

# Nothing, less than a step takes on an H100 or H200, and much more.
LOADER_MS = (0, 5, 200)
TURNS = 3

SCRIPT = str(Path(__file__).with_name("gpu_training.py"))
FOLDER = Path(__file__).parent.parent / "docs" / "measurements"


def main() -> int:
    """Measure and write; 2 where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        print("make gpu: torch sees no GPU on this machine; nothing was measured", file=sys.stderr)
        return 2
    count, model = torch.cuda.device_count(), torch.cuda.get_device_name()
    name = f"{date.today()}-{count}x-{model.replace(' ', '-').lower()}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    doctor = _output("-m", "ddoctor", "doctor", "--markdown", "-")
    alone = "There is one GPU, and nothing to sum.\n"
    bench = _output("-m", "benchmarks.allreduce") if count > 1 else alone
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    plans = _output("-m", "benchmarks.gpu_plan")
    costs = "\n".join(_cost(count, *length) for length in ((), ("--short",)))
    runs = "\n".join(_recorded(count, milliseconds) for milliseconds in LOADER_MS)
    text = (
        f"# {count} × {model}, {date.today()}\n\n"
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}\n\n"
        f"{doctor}\n## The all-reduce probe against a bare loop\n\n```\n{bench}```\n\n"
        f"## Forecasts of memory and step time against trainings\n\n```\n{plans}```\n\n"
        f"## What recording every step costs\n\n{costs}\n\n"
        f"## Recorded trainings\n\n{runs}"
    )
    (FOLDER / f"{name}.md").write_text(text)
    print(text)
    return 0


def _recorded(count: int, milliseconds: int) -> str:
    """A training whose loader takes so long for each batch, and what is told of it."""
    recorded = ("-m", "ddoctor.probe", "run", "--markdown", "-", "--no-prove")
    told = _output(*_torchrun(count), *recorded, SCRIPT, f"--loader-ms={milliseconds}")
    return f"### {milliseconds} ms for each batch\n\n{told}\n"


def _cost(count: int, *length: str) -> str:
    """How much longer a step takes when all steps are recorded, in turns with bare ones."""
    recorded = ("-m", "ddoctor.probe", "run", "--no-prove", "--steps=all")
    bare, ratios = [], []
    for _ in range(TURNS):
        bare.append(_step(_output(*_torchrun(count), SCRIPT, *length)))
        ratios.append(_step(_output(*_torchrun(count), *recorded, SCRIPT, *length)) / bare[-1])
    every = ", ".join(f"{one:.4f}" for one in ratios)
    return f"A step of {median(bare):.3f} ms is {median(ratios):.4f} times as long ({every})."


def _step(output: str) -> float:
    """The milliseconds that the training's first rank prints; not a number: it printed none."""
    found = re.search(r"a step took ([\d.]+) ms", output)
    return float(found[1]) if found else float("nan")


def _torchrun(count: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")


def _output(*arguments: str) -> str:
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    # Of ours, 1 says what was found; a traceback leaves with 1, too, and prints nothing else.
    if run.returncode > 1 or not run.stdout:
        raise SystemExit(f"make gpu: {' '.join(arguments)} failed:\n{run.stderr}")
    return run.stdout


if __name__ == "__main__":
    sys.exit(main())
