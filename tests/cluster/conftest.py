"""Hosts on a switch: network namespaces with separate names, addresses and /etc/hosts."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddoctor.proc import processes
from tests.conftest import STEERING
from tests.namespace import Within, named, namespace

MARK = "DDOCTOR_TEST_CLUSTER"
LIMIT_SECONDS = 240
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command on one host came to."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class Node:
    """One host: its interface is eth0, and its end of the cable at the switch has its name."""

    index: int
    name: str
    address: str
    within: Within
    """A command that executes its arguments on this host."""
    namespace: str
    """Of its network, as ``ip`` names it."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts node-0, node-1, … with one interface each, on one switch."""

    nodes: tuple[Node, ...]
    switch: Within
    """A command that executes its arguments at the switch, say ``tc qdisc add dev node-1 …``."""
    mark: str

    @property
    def torchrun(self) -> tuple[str, ...]:
        """torchrun over all hosts, one rank each, to be given to ``run`` with what to start."""
        count = len(self.nodes)
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={self.nodes[0].name}:29400")
        return (*TORCHRUN, f"--nnodes={count}", "--nproc-per-node=1", *meeting)

    def start(
        self,
        node: Node,
        *command: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command on one host; ``{node}`` in an argument becomes its number."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
        ours = {MARK: self.mark, "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
        return subprocess.Popen(
            [*node.within, *(word.replace("{node}", str(node.index)) for word in command)],
            env=inherited | ours | dict(environment or {}),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *command: str,
        nodes: Sequence[Node] | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> tuple[Output, ...]:
        """Run a command on every host (or on these) at once, and wait for all."""
        chosen = self.nodes if nodes is None else nodes
        started = [
            self.start(node, *command, environment=environment, folder=folder) for node in chosen
        ]
        return tuple(map(outcome, started))


def outcome(process: subprocess.Popen[str]) -> Output:
    """Wait for a command that was started."""
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    return Output(exit_code=process.returncode, stdout=stdout, stderr=stderr)


MakeCluster = Callable[[int], Cluster]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Make a cluster of a number of hosts; all its processes end with the test."""
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(switched(count, tmp_path))


@contextmanager
def switched(count: int, folder: Path) -> Iterator[Cluster]:
    """A number of hosts on one switch, with a folder for their files."""
    mark = uuid.uuid4().hex
    addresses = {f"node-{index}": f"10.77.0.{index + 1}" for index in range(count)}
    lines = "\n".join(f"{address} {name}" for name, address in addresses.items())
    with ExitStack() as stack:
        switch = stack.enter_context(namespace("link add switch type bridge", "link set switch up"))
        nodes = []
        for index, (name, address) in enumerate(addresses.items()):
            within = stack.enter_context(namespace())
            _cable(switch, name, within, address)
            own = folder / name
            own.mkdir()
            inside = (*within, *named(name, lines, own))
            nodes.append(
                Node(index=index, name=name, address=address, within=inside, namespace=within[-1])
            )
        try:
            yield Cluster(nodes=tuple(nodes), switch=switch, mark=mark)
        finally:
            processes.end(2.0, **{MARK: mark})


def _cable(switch: Within, name: str, host: Within, address: str) -> None:
    """The link between the switch and a host, whose default gateway does not need to answer."""
    there = host[-1]
    for within, line in (
        (switch, f"link add {name} type veth peer name eth0 netns {there}"),
        (switch, f"link set {name} master switch"),
        (switch, f"link set {name} up"),
        (host, f"addr add {address}/24 dev eth0"),
        (host, "link set eth0 up"),
        (host, "route add default via 10.77.0.254"),
    ):
        subprocess.run([*within, "ip", *line.split()], check=True)
