"""Surroundings that a command may meet: each is a command that executes its arguments in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import STEERING

LIMIT_SECONDS = 240
READ = "dac_read_search"
NOBODY = 65534
NOTHING_SET: Mapping[str, str] = {}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
RUN = (sys.executable, "-m", "ddoctor", "run", "--no-prove")

Within = tuple[str, ...]

ALONE = """
    import os, sys, time
    import torch
    from torch import nn
    model = nn.Linear(64, 64)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        model(torch.randn(32, 64)).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
        time.sleep(0.005)
    print("the end", flush=True)
    sys.exit(int(os.environ.get("CODE", "0")))
"""
"""A training of one process, without a process group."""
TOGETHER = """
    import os, sys, time
    import torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 64))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        model(torch.randn(32, 64)).square().mean().backward()
        sgd.step()
        sgd.zero_grad()
        time.sleep(0.02)
    print("the end", flush=True)
    dist.destroy_process_group()
    sys.exit(int(os.environ.get("CODE", "0")))
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> list[str]:
        """The lines of ddoctor on stderr, without its command and what that starts."""
        lines = [one for one in self.stderr.splitlines() if re.match("ddoctor: [^ ]", one)]
        return [one for one in lines if "-m ddoctor.probe" not in one]

    @property
    def ends(self) -> int:
        """How many scripts came to their end."""
        # Several ranks may share a line.
        return self.stdout.count("the end")

    def check(self, *, internal: bool) -> None:
        """No traceback is of ddoctor's own, and it reports no error of its own."""
        assert internal or "internal error" not in self.stderr, self.stderr
        frames = [one for one in self.stderr.splitlines() if one.lstrip().startswith("File ")]
        assert not any("/ddoctor/" in one for one in frames), self.stderr


def run(
    *words: str,
    within: Sequence[str] = (),
    folder: Path | None = None,
    environment: Mapping[str, str] = NOTHING_SET,
    internal: bool = False,
    limit: float = LIMIT_SECONDS,
) -> Ran:
    """Run a command to its end; ``internal``: it may report an error of its own in one line."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
    done = subprocess.run(
        [*within, *words],
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit,
    )
    ran = Ran(
        code=done.returncode,
        stdout=done.stdout.decode(errors="replace"),
        stderr=done.stderr.decode(errors="replace"),
    )
    ran.check(internal=internal)
    return ran


def script(folder: Path, source: str = ALONE, name: str = "train.py") -> Path:
    """A script in this folder."""
    path = folder / name
    path.write_text(dedent(source))
    return path


def after(prepare: str, *namespaces: str) -> Within:
    """What executes its arguments after these lines of a shell, in namespaces of its own."""
    within = ("unshare", *namespaces, "sh", "-c", f'{prepare}\nexec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*within, "true"]).returncode:
        pytest.skip(f"no such namespaces here: unshare {' '.join(namespaces)}")
    return within


def tmpfs(folder: Path | str, size: str) -> str:
    """The line that puts a small disk in place of a folder."""
    return f"mount -t tmpfs -o size={size} none '{folder}' || exit"


def nobody() -> Within:
    """What executes its arguments as a user without rights, but to read: Python may be root's."""
    user = (
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--bounding-set=-all,+" + READ,
    )
    within = ("setpriv", *user, f"--inh-caps=+{READ}", f"--ambient-caps=+{READ}")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root becomes another user, by setpriv")
    if subprocess.run([*within, sys.executable, "-c", ""], cwd="/").returncode:
        pytest.skip("no other user may start this Python")
    return within
