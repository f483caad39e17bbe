"""A network namespace of its own, in which interfaces are made and broken for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

Within = tuple[str, ...]
"""A command that executes its arguments in the namespace."""

_numbers = count()


@contextmanager
def namespace(*lines: str) -> Iterator[Within]:
    """Make a namespace from lines for ``ip``; the test is skipped where that cannot be done."""
    ip = shutil.which("ip")
    if ip is None:
        pytest.skip("there is no ip (iproute2)")
    name = f"ddoctor-{os.getpid()}-{next(_numbers)}"
    made = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        for line in ("link set lo up", *lines):
            subprocess.run([ip, "-n", name, *line.split()], check=True)
        while _settling(ip, name):
            time.sleep(0.1)
        yield (ip, "netns", "exec", name)
    finally:
        subprocess.run([ip, "netns", "del", name], check=True)


def wire(name: str, *addresses: str, answered: bool = True) -> list[str]:
    """Lines for an interface that is up; it has carrier where its other end answers."""
    end = f"end-{name}"
    return [
        f"link add {name} type veth peer name {end}",
        # Without addresses of its own making.
        f"link set {name} addrgenmode none",
        f"link set {end} addrgenmode none",
        *(f"addr add {one} dev {name}{' nodad' if ':' in one else ''}" for one in addresses),
        f"link set {name} up",
        *([f"link set {end} up"] if answered else []),
    ]


def _settling(ip: str, name: str) -> bool:
    """Whether the kernel has yet to say that some interface runs: it takes up to a second."""
    links = json.loads(subprocess.check_output([ip, "-n", name, "-json", "link"]))
    return any({"LOWER_UP", "NO-CARRIER"} <= set(link["flags"]) for link in links)


def named(name: str, hosts: str, folder: Path) -> Within:
    """A command that executes its arguments on a host of this name, with these lines in its
    /etc/hosts and no other source of names."""
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}\n")
    (folder / "nsswitch.conf").write_text("hosts: files\n")
    prepare = (
        f"echo {name} > /proc/sys/kernel/hostname && "
        f"mount --bind {folder}/hosts /etc/hosts && "
        f"mount --bind {folder}/nsswitch.conf /etc/nsswitch.conf && "
        'exec "$@"'
    )
    within = ("unshare", "--mount", "--uts", "sh", "-c", prepare, "sh")
    if shutil.which("unshare") is None or subprocess.run([*within, "true"]).returncode:
        pytest.skip("no mount and UTS namespaces here")
    return within


def run(within: Within, code: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints in there."""
    done = subprocess.run(
        [*within, sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
