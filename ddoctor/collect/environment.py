"""The environment variables that control a run, and the configuration files of NCCL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from ddoctor.evidence.environment import HIDDEN, Environment, Variable

PREFIXES = (
    "NCCL_",
    "TORCH_",
    "TORCHELASTIC_",
    "PYTORCH_",
    "GLOO_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "CUDA_",
    "ACCELERATE_",
    "FSDP_",
    "PARALLELISM_CONFIG_",
    "FI_",
    "OMPI_COMM_WORLD_",
    # Slips of the pen for the first of them, which would be passed over in silence.
    "NCLL_",
    "NCC_",
)
NAMES = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "NODE_RANK",
    "TORCHDYNAMO_DISABLE",
    "TOKENIZERS_PARALLELISM",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE",
    "XDG_CACHE_HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "RDMAV_FORK_SAFE",
    "IBV_FORK_SAFE",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_CPU_BIND",
}

SECRET_NAME = re.compile(
    r"(^|_)(API_?)?(KEY|TOKEN|AUTH|PASS|PASSWD|CREDS?)S?(_|$)|SECRET|PASSWORD|CREDENTIAL|APIKEY",
    re.IGNORECASE,
)
# A URL with user information, and the forms in which Hugging Face, GitHub, OpenAI, AWS and JSON Web
# Tokens write their keys.
SECRET_VALUE = re.compile(
    r"://[^/\s]*@|\bhf_\w{16,}|\bgh[pousr]_\w{16,}|\bsk-[\w-]{16,}|\bAKIA[0-9A-Z]{12,}|\beyJ[\w-]{16,}"
)


def environment(variables: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Environment:
    """The variables of the allow-list, with those of NCCL's files."""
    return Environment(
        variables=tuple(
            Variable(
                name=name,
                value=HIDDEN if secret(name, value) else value,
                origin=origin,
                missing=_missing(value),
            )
            for name, (origin, value) in sorted(in_force(variables, root).items())
            if name in NAMES or name.startswith(PREFIXES) or name.upper().startswith("NCCL_")
        )
    )


def in_force(
    variables: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> Mapping[str, tuple[str, str]]:
    """Every variable as NCCL will see it: the file that sets it (empty: none), and its value.

    NCCL sets what its files say where the environment does not: first NCCL_CONF_FILE, or else
    ``~/.nccl.conf``, then ``/etc/nccl.conf`` (its src/misc/param.cc).
    """
    set_by = {name: ("", value) for name, value in variables.items()}
    for file in _configuration_files(variables, root):
        for name, value in _settings(file):
            set_by.setdefault(name, (f"/{file.relative_to(root)}", value))
    return set_by


def _configuration_files(variables: Mapping[str, str], root: Path) -> Iterator[Path]:
    own = variables.get("NCCL_CONF_FILE")
    home = variables.get("HOME")
    if own:
        yield root / own.lstrip("/")
    elif home:
        yield root / home.lstrip("/") / ".nccl.conf"
    yield root / "etc/nccl.conf"


def _settings(file: Path) -> Iterator[tuple[str, str]]:
    """Lines ``NAME=value``, unchanged: NCCL strips neither blanks nor quotes."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value


def secret(name: str, value: str) -> bool:
    """Whether a value might be a secret, by its name or its form."""
    return bool(SECRET_NAME.search(name) or SECRET_VALUE.search(value))


def _missing(value: str) -> Literal["", "file", "folder"]:
    path = Path(value)
    # A pattern such as %h stands for the host's name; ~ is not expanded by those who read these.
    if not value.startswith(("/", "./", "../", "~/")) or ":" in value or "%" in str(path.parent):
        return ""
    try:
        if path.exists():
            return ""
        return "file" if path.parent.exists() else "folder"
    except OSError:
        return ""


COLLECTORS = (environment,)
