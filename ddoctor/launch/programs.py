"""Which words of a command are programs that launch a training, or that start other commands."""

from __future__ import annotations

import re
from pathlib import PurePath

from ddoctor.launch.launchers import (
    ACCELERATE,
    DEEPSPEED,
    FABRIC,
    MPIRUN,
    SLURM,
    SRUN,
    TORCH_LAUNCH,
    TORCHRUN,
)

PYTHON = re.compile(r"(?:python|pypy)(\d+(\.\d+)?t?)?")
SHELLS = ("bash", "dash", "ksh", "sh", "zsh")
MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCH_LAUNCH,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
PROGRAMS = {
    "torchrun": TORCHRUN,
    "accelerate-launch": ACCELERATE,
    "accelerate": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "fabric": FABRIC,
    "lightning": FABRIC,
    "srun": SRUN,
    "sbatch": SLURM,
    "salloc": SLURM,
    "mpirun": MPIRUN,
    "mpiexec": MPIRUN,
}
# Programs of a package that train in one process.
CONSOLE = ("lerobot-train", "trl", "axolotl", "llamafactory-cli", "litgpt")
JOBS = ("hf", "jobs", "run")
COMMANDS = {
    "accelerate": ("launch",),
    "fabric": ("run",),
    # The older name of `fabric run`.
    "lightning": ("run", "model"),
}
"""The words by which a program with several commands launches a training."""
REMOTE = ("ssh", "pdsh", "clush", "pssh", "parallel-ssh")
"""Programs that give a command to the shells of other machines."""
SHELL_SCRIPTS = (".sh", ".sbatch", ".slurm")
TASK_STARTERS = ("srun", "mpirun", "mpiexec")
"""Programs that start several processes, on several hosts."""
STARTERS = (*TASK_STARTERS, "sbatch", "salloc")
"""Programs that start other commands, and know nothing of torch."""
HERE = ("env", "exec", "nohup", "sudo", "time", "uv", "run")
"""Words before a launcher that leave it on this machine, in this folder."""


def starts(text: str) -> bool:
    """Whether a word is one of these programs, or a script."""
    name = PurePath(text).name
    return (
        name in PROGRAMS
        or name in CONSOLE
        or (name.endswith(".py") and text != name)
        or name in SHELLS
        or text in REMOTE
        or name.endswith(SHELL_SCRIPTS)
        or PYTHON.fullmatch(name) is not None
    )
