"""Settings that the hosts of one run should share, as text, and where hosts differ in them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel, Limit, Limits
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.section import Section
from ddoctor.evidence.software import Environment, Job, Software

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
    "CUDA_VISIBLE_DEVICES",
}
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
    complete: frozenset[Kind]
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
    complete: set[Kind] = set()
    names = {host}
    for section in sections:
        for kind, name, value in _settings(section):
            if value is not None:
                values[HostSetting(kind=kind, name=name)] = value
        match section:
            # What is printed may be an excerpt.
            case Software(printed=False):
                complete.add("package")
            case Environment(printed=False):
                complete.add("variable")
            case Network():
                names |= {section.own_name.name, section.announced_name} - {""}
                names |= {
                    address.address
                    for interface in section.interfaces
                    if interface.kind != "loopback"
                    for address in interface.addresses
                }
    return Settings(host=host, values=values, complete=frozenset(complete), names=frozenset(names))


def without_names(value: str, names: Collection[str]) -> str:
    """The value with these hosts' names and addresses replaced, also in front of a domain."""

    def replaced(found: re.Match[str]) -> str:
        if found[0] in names:
            return HERE
        first, dot, rest = found[0].partition(".")
        return f"{HERE}{dot}{rest}" if first in names else found[0]

    return WORD.sub(replaced, value)


@dataclass(frozen=True, kw_only=True, eq=False)
class Drift:
    """One setting that hosts do not share."""

    setting: HostSetting
    hosts: Mapping[str, tuple[str, ...]]
    """The hosts by their value, the most common value first."""

    @property
    def usual(self) -> str | None:
        """The value of more than half of the hosts; None: there is no majority."""
        value, hosts = next(iter(self.hosts.items()))
        return value if 2 * len(hosts) > self.total else None

    @property
    def total(self) -> int:
        """The number of hosts with a known value."""
        return sum(map(len, self.hosts.values()))


def drifts(every: Sequence[Settings]) -> Iterator[Drift]:
    """The settings that differ between hosts; unknown values are left out."""
    known = dict.fromkeys(setting for one in every for setting in one.values)
    names = frozenset[str]().union(*(one.names for one in every))
    for setting in known:
        values = {one.host: one.get(setting) for one in every}
        hosts = _grouped(values)
        if len(hosts) > 1 and setting.own_words:
            # A path may contain the name of each host, or of one host on all others.
            general = {
                host: value and without_names(value, names) for host, value in values.items()
            }
            hosts = _grouped(general)
        total = sum(map(len, hosts.values()))
        by_design = setting.own_words and total > 2 and len(hosts) == total
        if len(hosts) > 1 and not by_design:
            yield Drift(setting=setting, hosts=hosts)


def _grouped(values: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for host, value in values.items():
        if value is not None:
            groups.setdefault(value, []).append(host)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return {value: tuple(hosts) for value, hosts in ordered}


def _settings(section: Section) -> Iterator[tuple[Kind, str, str | None]]:
    """The kind, name and value of each setting in a section; None: not known."""
    match section:
        case Software(torch=torch):
            yield "version", "Python", section.python or None
            if torch is not None:
                yield "version", "torch", torch.version
                yield "version", "torch's CUDA", torch.cuda or None
                yield "version", "torch's ROCm", torch.hip
                yield "version", "cuDNN", torch.cudnn
            elif section.torch_error:
                yield "version", "torch", "cannot be imported"
            for package in section.packages:
                if "nccl" not in package.name:
                    yield "package", package.name, package.version
        case Environment():
            for variable in section.variables:
                if variable.name not in OWN and not variable.name.startswith(PLACES):
                    yield "variable", variable.name, variable.value
        case Limits():
            # Without the number of processes: the kernel derives it from the exact memory size.
            yield "limit", "open files", _amount(section.open_files)
            if not section.locks_without_limit:
                yield "limit", "locked memory", _amount(section.locked_memory)
        case Kernel(command_line=options):
            yield "kernel", "kernel", section.release
            if options is not None:
                yield "kernel", "kernel parameters", " ".join(sorted(options.split())) or "none"
        case Gpus():
            yield "gpus", "driver", section.driver or None
            yield "gpus", "number of GPUs", str(len(section.gpus))
            # nvidia-smi prints only the beginning of a long name.
            if len(section.answering) == len(section.gpus) and not section.printed:
                models = ", ".join(sorted({gpu.name for gpu in section.gpus}))
                yield "gpus", "GPU models", models or "none"
            if section.peers:
                paths = Counter(peer.path for peer in section.peers)
                topology = ", ".join(f"{number} × {path}" for path, number in sorted(paths.items()))
                yield "gpus", "GPU topology", topology
        case Rdma():
            # By model, since hosts may have different devices or more of them.
            known = [one for one in section.devices if one.board and one.firmware]
            for board in dict.fromkeys(one.board for one in known):
                versions = sorted({one.firmware for one in known if one.board == board})
                yield "firmware", f"firmware of {board}", ", ".join(versions)
        case Job(arguments=arguments):
            if arguments is not None:
                yield "job", "arguments", shlex.join(_shared(arguments)) or "none"
            yield "job", "code commit", section.commit


def _amount(limit: Limit) -> str:
    return "unlimited" if limit.soft is None else str(limit.soft)


def _shared(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments without options that differ for each process."""
    words = iter(arguments)
    for word in words:
        if not OWN_OPTIONS.fullmatch(word):
            yield word
        elif "=" not in word:
            next(words, None)
