"""Everything that needs a GPU, in one call; the figures go to docs/measurements/.

``make gpu`` runs it. It runs the whole of ``ddoctor doctor`` on the machine's GPUs, the all-reduce
benchmark and recorded trainings, and writes what they said, with date and hardware.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

# Nothing, less than a step takes on an H100 or H200, and much more.
LOADER_MS = (0, 5, 200)

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
    bench = _output("-m", "benchmarks.allreduce")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    runs = "\n".join(_recorded(count, milliseconds) for milliseconds in LOADER_MS)
    text = (
        f"# {count} × {model}, {date.today()}\n\n"
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}\n\n"
        f"{doctor}\n## The all-reduce probe against a bare loop\n\n```\n{bench}```\n\n"
        f"## Recorded trainings\n\n{runs}"
    )
    (FOLDER / f"{name}.md").write_text(text)
    print(text)
    return 0


def _recorded(count: int, milliseconds: int) -> str:
    """A training whose loader takes so long for each batch, and what is told of it."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    recorded = ("-m", "ddoctor.probe", "run", "--markdown", "-", "--no-prove")
    script = str(Path(__file__).with_name("gpu_training.py"))
    told = _output(*torchrun, *recorded, script, f"--loader-ms={milliseconds}")
    return f"### {milliseconds} ms for each batch\n\n{told}\n"


def _output(*arguments: str) -> str:
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    return run.stdout + (run.stderr if run.returncode > 1 else "")


if __name__ == "__main__":
    sys.exit(main())
