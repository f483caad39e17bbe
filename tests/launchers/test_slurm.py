"""What is told of trainings that Slurm starts on two hosts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Output
from tests.launchers.slurm import Slurm

RUN = (sys.executable, "-m", "ddoctor", "run", "--no-prove", "--json=report.json")
SRUN = ("srun", "-N2", "-n2", sys.executable)
ENDLESS = "1000000"


def report(folder: Path, output: Output) -> dict[str, Any]:
    """The report of a run, which must be there."""
    path = folder / "report.json"
    assert path.exists(), output.stderr
    told: dict[str, Any] = json.loads(path.read_text())
    return told


@pytest.mark.ward
def test_a_rank_that_exits_is_named_with_its_host(two_hosts: Slurm, script: Path) -> None:
    """The script finds its rank in Slurm's variables; its exit code is that of srun."""
    output = two_hosts.run(*RUN, "--", *SRUN, "train.py", "exits", ENDLESS, folder=script)
    first = report(script, output)["findings"][0]
    assert first["cause"] == "dead-rank"
    assert first["where"] == {"hosts": ["node-1"], "ranks": [1], "devices": []}
    assert output.exit_code == 3
    assert "rank 1 on node-1" in output.stdout


@pytest.mark.ward
@pytest.mark.parametrize(
    ("fault", "cause", "ranks"),
    [
        ("raises", "dead-rank", [1]),
        ("hangs", "rank-stuck-outside-collective", [1]),
        ("straggler", "straggler-rank", [1]),
        ("loader", "dataloader-bottleneck", None),
    ],
)
def test_a_fault_is_told(
    two_hosts: Slurm, script: Path, fault: str, cause: str, ranks: list[int] | None
) -> None:
    output = two_hosts.run(*RUN, "--", *SRUN, "train.py", fault, ENDLESS, folder=script)
    first = report(script, output)["findings"][0]
    assert first["cause"] == cause
    if ranks is not None:
        assert (first["where"]["hosts"], first["where"]["ranks"]) == (["node-1"], ranks)
    assert output.exit_code == 1


@pytest.mark.ward
@pytest.mark.parametrize(
    "command",
    [
        # In front of srun, and in each task.
        (*RUN, "--", *SRUN, "train.py"),
        ("srun", "-N2", "-n2", *RUN, "--", sys.executable, "train.py"),
        # Four ranks of one thread: with two each, they rightly lack CPUs where there are two.
        (
            *("env", "OMP_NUM_THREADS=1", *RUN, "--"),
            *("srun", "-N2", "--ntasks-per-node=2", sys.executable, "train.py"),
        ),
        (
            *(*RUN, "--", "srun", "-N2", "--ntasks-per-node=1", sys.executable),
            *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=node-0:29400", "train.py"),
        ),
    ],
    ids=["before srun", "in each task", "two tasks a host", "torchrun"],
)
def test_a_sound_script_is_healthy(
    two_hosts: Slurm, script: Path, command: tuple[str, ...]
) -> None:
    output = two_hosts.run(*command, "sound", ENDLESS, folder=script)
    told = report(script, output)
    assert [one for one in told["findings"] if one["severity"] != "note"] == []
    assert told["world"]["hosts"] == ["node-0", "node-1"]
    assert output.exit_code == 0


@pytest.mark.ward
def test_a_job_file(two_hosts: Slurm, script: Path) -> None:
    job = script / "job.sh"
    job.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --output=job.out\n"
        f"{' '.join(RUN)} -- srun {sys.executable} train.py exits {ENDLESS}\n"
    )
    output = two_hosts.run("sbatch", "--wait", "job.sh", folder=script)
    assert report(script, output)["findings"][0]["where"]["hosts"] == ["node-1"]
    assert output.exit_code == 3


@pytest.mark.ward
def test_the_probes(two_hosts: Slurm, script: Path) -> None:
    """The first host of the step is where the ranks connect."""
    probe = ("-m", "ddoctor.probe", "--json=report.json")
    output = two_hosts.run(*SRUN, *probe, folder=script)
    told = report(script, output)
    assert [one for one in told["findings"] if one["severity"] != "note"] == []
    assert (told["world"]["hosts"], told["world"]["ranks"]) == (["node-0", "node-1"], 2)
