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
TURNS = 2

SCRIPT = str(Path(__file__).with_name("gpu_training.py"))
FOLDER = Path(__file__).parent.parent / "docs" / "measurements"


def main() -> int:
    """Measure and write; 2 where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        print("make gpu: torch sees no GPU on this machine; nothing was measured", file=sys.stderr)
        return 2
    count, model = torch.cuda.device_count(), torch.cuda.get_device_name()
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{date.today()}-{count}x-{model.replace(' ', '-').lower()}.md"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    with path.open("w") as file:
        # Each part at once: one that fails later costs none of those before.
        print(f"# {count} × {model}, {date.today()}\n", file=file)
        print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}", file=file)
        for title, measure in PARTS.items():
            print(f"\n## {title}\n\n{measure(count)}", file=file, flush=True)
            print(f"{title}: written to {path}", flush=True)
    return 0


def _doctor(count: int) -> str:
    return _output("-m", "ddoctor", "doctor", "--markdown", "-")


def _all_reduce(count: int) -> str:
    if count == 1:
        return "There is one GPU, and nothing to sum."
    return f"```\n{_output('-m', 'benchmarks.allreduce')}```"


def _plans(count: int) -> str:
    return f"```\n{_output('-m', 'benchmarks.gpu_plan')}```"


def _costs(count: int) -> str:
    return "\n".join(_cost(count, *length) for length in ((), ("--short",)))


def _runs(count: int) -> str:
    return "\n".join(_recorded(count, milliseconds) for milliseconds in LOADER_MS)


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


PARTS = {
    "ddoctor doctor": _doctor,
    "The all-reduce probe against a bare loop": _all_reduce,
    "Forecasts of memory and step time against trainings": _plans,
    "Recorded trainings": _runs,
    "What recording every step costs": _costs,
}


if __name__ == "__main__":
    sys.exit(main())
