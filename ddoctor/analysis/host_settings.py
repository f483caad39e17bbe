"""Settings that the hosts of one run should share, as text that can be compared."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ddoctor.evidence.environment import Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel, Limit, Limits
from ddoctor.evidence.job import Job
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.section import Section
from ddoctor.evidence.software import Software

Kind = Literal["version", "package", "variable", "limit", "kernel", "gpus", "firmware", "job"]

ABSENT: Mapping[str, str] = {"variable": "not set", "package": "not installed"}

# Launchers set these for each process; they differ by design. If they are wrong, the run fails to
# join, which other checks cover.
PLACES = ("SLURM_", "OMPI_COMM_WORLD_", "TORCHELASTIC_")
OWN = {
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
    "NCCL_HOSTID",
    "TMPDIR",
}
DEVICES = "CUDA_VISIBLE_DEVICES"
# The place of a process, and the report files of ddoctor, which one rank writes.
OWN_OPTIONS = re.compile(r"--((local|node|machine)[-_]rank|json|markdown|html|bundle)(=.*)?")

HERE = "<host>"
"""Placeholder for the names and addresses of hosts of the run."""

WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")


@dataclass(frozen=True, kw_only=True)
class HostSetting:
    """One setting that all hosts should share."""

    kind: Kind
    name: str

    @property
    def own_words(self) -> bool:
        """Whether its value is free text that may contain the host's own name."""
        return self.kind in ("variable", "job")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one host, without NCCL's version, which another check covers."""

    host: str
    values: Mapping[HostSetting, str]
    complete: frozenset[str]
    """The kinds that are fully known: a missing setting of them does not exist."""
    names: frozenset[str]
    """Names and addresses of the host itself."""

    def get(self, setting: HostSetting) -> str | None:
        """The value; None: not known."""
        absent = ABSENT.get(setting.kind) if setting.kind in self.complete else None
        return self.values.get(setting, absent)


def settings(sections: Iterable[Section]) -> tuple[Settings, ...]:
    """The settings of each host in these sections, in the order of the host names."""
    hosts: dict[str, list[Section]] = {}
    for section in sections:
        if section.host:
            hosts.setdefault(section.host, []).append(section)
    return tuple(_of(host, hosts[host]) for host in sorted(hosts))


def _of(host: str, sections: Iterable[Section]) -> Settings:
    values: dict[HostSetting, str] = {}
    complete: set[str] = set()
    names = {host}
    for section in sections:
        match section:
            case Software():
                complete.add("package")
                values |= {HostSetting(kind="version", name=n): v for n, v in _versions(section)}
                values |= {
                    HostSetting(kind="package", name=one.name): one.version
                    for one in section.packages
                    if "nccl" not in one.name
                }
            case Environment():
                complete.add("variable")
                values |= {HostSetting(kind="variable", name=n): v for n, v in _variables(section)}
            case Limits():
                values |= {HostSetting(kind="limit", name=n): v for n, v in _limits(section)}
            case Kernel():
                values[HostSetting(kind="kernel", name="kernel")] = section.release
                if section.command_line is not None:
                    words = " ".join(sorted(section.command_line.split())) or "none"
                    values[HostSetting(kind="kernel", name="kernel parameters")] = words
            case Gpus():
                values |= {HostSetting(kind="gpus", name=n): v for n, v in _gpus(section)}
            case Rdma():
                values |= {HostSetting(kind="firmware", name=n): v for n, v in _firmware(section)}
            case Job():
                values |= {HostSetting(kind="job", name=n): v for n, v in _job(section)}
            case Network():
                names |= {section.own_name.name, section.announced_name}
                names |= {
                    address.address
                    for interface in section.interfaces
                    if interface.kind != "loopback"
                    for address in interface.addresses
                }
    return Settings(
        host=host, values=values, complete=frozenset(complete), names=frozenset(filter(None, names))
    )


def without_names(value: str, names: Collection[str]) -> str:
    """The value with these hosts' names and addresses replaced, also in front of a domain."""

    def replaced(found: re.Match[str]) -> str:
        if found[0] in names:
            return HERE
        first, dot, rest = found[0].partition(".")
        return f"{HERE}{dot}{rest}" if first in names else found[0]

    return WORD.sub(replaced, value)


def _versions(software: Software) -> Iterator[tuple[str, str]]:
    yield "Python", software.python
    torch = software.torch
    if torch is None:
        if software.torch_error:
            yield "torch", "cannot be imported"
        return
    versions = (
        ("torch", torch.version),
        ("torch's CUDA", torch.cuda),
        ("torch's ROCm", torch.hip),
        ("cuDNN", torch.cudnn),
    )
    yield from ((name, version) for name, version in versions if version is not None)


def _variables(environment: Environment) -> Iterator[tuple[str, str]]:
    for one in environment.variables:
        if one.name not in OWN | {DEVICES} and not one.name.startswith(PLACES):
            yield one.name, one.value


def _limits(limits: Limits) -> Iterator[tuple[str, str]]:
    """Without the number of processes: the kernel derives it from the exact memory size."""
    yield "open files", _amount(limits.open_files)
    if not limits.locks_without_limit:
        yield "locked memory", _amount(limits.locked_memory)


def _amount(limit: Limit) -> str:
    return "unlimited" if limit.soft is None else str(limit.soft)


def _gpus(section: Gpus) -> Iterator[tuple[str, str]]:
    yield "driver", section.driver
    yield "number of GPUs", str(len(section.gpus))
    if len(section.answering) == len(section.gpus):
        yield "GPU models", ", ".join(sorted({gpu.name for gpu in section.gpus})) or "none"
    if section.peers:
        paths = Counter(peer.path for peer in section.peers)
        yield "GPU topology", ", ".join(f"{n} × {path}" for path, n in sorted(paths.items()))


def _firmware(rdma: Rdma) -> Iterator[tuple[str, str]]:
    """By model, since hosts may have different devices or more of them."""
    versions: dict[str, set[str]] = {}
    for device in rdma.devices:
        if device.board and device.firmware:
            versions.setdefault(device.board, set()).add(device.firmware)
    for board, some in versions.items():
        yield f"firmware of {board}", ", ".join(sorted(some))


def _job(job: Job) -> Iterator[tuple[str, str]]:
    if job.arguments is not None:
        yield "arguments", shlex.join(_shared(job.arguments)) or "none"
    if job.commit is not None:
        yield "code commit", job.commit


def _shared(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments without options that differ for each process."""
    words = iter(arguments)
    for word in words:
        if not OWN_OPTIONS.fullmatch(word):
            yield word
        elif "=" not in word:
            next(words, None)
