"""A Slurm of two hosts on one switch, each with processes, a name and an address of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conftest import MARK, Cluster, Node, Output, outcome, switched

LIMIT_SECONDS = 60
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
# Of a task, neither a cgroup nor an MPI library is needed; the hosts have more CPUs than are here.
SETTINGS = """
ClusterName=ddoctor
SlurmctldHost=node-0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=5
NodeName=node-[0-1] CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES
"""
# The shell is the first process of its PID namespace, and waits for those that the daemon leaves.
HOST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@" & wait')


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Commands run on the first host, as on a login node."""

    cluster: Cluster
    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]]
    """slurmd of each host, by the host's name."""

    def start(self, *command: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
        """Start a command that finds this Slurm."""
        return self.cluster.start(
            self.login,
            *command,
            environment={"SLURM_CONF": str(self.folder / "slurm.conf"), **environment},
            folder=folder,
        )

    def run(self, *command: str, folder: Path, **environment: str) -> Output:
        """Run a command that finds this Slurm."""
        return outcome(self.start(*command, folder=folder, **environment))

    @property
    def login(self) -> Node:
        """The host on which users type."""
        return self.cluster.nodes[0]

    def lose(self, host: str) -> None:
        """A host is gone, with all that ran on it."""
        self.daemons[host].kill()
        self.daemons[host].wait(LIMIT_SECONDS)

    def wait_until_idle(self) -> None:
        """Until both hosts can take a job."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.run("sinfo", "-h", "-N", "-o", "%T", folder=self.folder).stdout.split() != [
            "idle",
            "idle",
        ]:
            assert time.monotonic() < deadline, (self.folder / "slurmctld.log").read_text()
            time.sleep(0.2)


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start it with all its files in the folder; the test is skipped where it is not installed."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} (Slurm)")
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder))
    # Otherwise slurmd looks for the kernel's, which a network namespace does not show.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(1024))
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munged = (
        *("munged", "--foreground", "--force", f"--key-file={key}"),
        *(f"--{option}={folder}/munge.{name}" for option, name in files.items()),
    )
    with ExitStack() as stack:
        cluster = stack.enter_context(switched(2, folder))
        login = cluster.nodes[0]

        def daemon(*command: str) -> subprocess.Popen[bytes]:
            # Without Slurm's variables of who runs the tests.
            inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
            own = {"SLURM_CONF": str(folder / "slurm.conf"), MARK: cluster.mark}
            process = subprocess.Popen(
                command,
                env={**inherited, **own},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        daemon(*munged)
        daemon(*login.within, *HOST, "sh", "slurmctld", "-D", "-i")
        daemons = {
            node.name: daemon(*node.within, *HOST, "sh", "slurmd", "-D") for node in cluster.nodes
        }
        started = Slurm(cluster=cluster, folder=folder, daemons=daemons)
        started.wait_until_idle()
        yield started
