"""Hosts differ in versions, driver, environment, limits, code or arguments.

Ranks of one run are to do the same: another torch, another thread count or another commit on one
host makes it slower than the rest, lets it enter another collective (the run hangs), or trains
something else without a word. The minority is held against the majority; which of them is meant is
yours to say. What differs by design (ranks, addresses, paths with the host's own name) is left out,
and so is NCCL's version, which has a cause of its own.

Seen from outside: ``pip freeze``, ``env``, ``ulimit -a``, ``uname -r`` and ``git rev-parse HEAD``
on each host, compared with ``diff``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis.drift import Drift, drifts
from ddoctor.analysis.host_settings import ABSENT, HERE, HostSetting, settings
from ddoctor.evidence.environment import HIDDEN, Environment
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel, Limits
from ddoctor.evidence.job import Job
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.software import Software
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# Interfaces and HCAs may be called otherwise on each host; logs and caches change no result.
HARMLESS = re.compile(
    r"(NCCL|GLOO|TP)_SOCKET_IFNAME|NCCL_IB_HCA|NCCL_DEBUG\w*|NCCL_VERSION|\w+_(HOME|CACHE)"
)
# Releases that differ in their last number only fix mistakes (https://semver.org, item 6); NVIDIA's
# driver branches are told by the first number (its data center driver lifecycle).
SAME_LINE = {"driver": 1}
NUMBERS = 2

FEW = 4
"""Values and hosts that fit a sentence."""


def differs_from_the_majority(
    software: tuple[Software, ...],
    environments: tuple[Environment, ...] | None,
    limits: tuple[Limits, ...] | None,
    kernels: tuple[Kernel, ...] | None,
    gpus: tuple[Gpus, ...] | None,
    jobs: tuple[Job, ...] | None,
    networks: tuple[Network, ...] | None,
    rdmas: tuple[Rdma, ...] | None,
) -> Iterator[Finding]:
    """One finding for the hosts that differ in the same way, and one where there is no majority."""
    others = (environments, limits, kernels, gpus, jobs, networks, rdmas)
    every = settings((*software, *(section for some in others for section in some or ())))
    found = tuple(drifts(every))
    rows: dict[str, list[tuple[Drift, str]]] = {}
    for drift in found:
        if drift.usual is not None:
            for value, hosts in drift.hosts.items():
                if value != drift.usual:
                    for host in hosts:
                        rows.setdefault(host, []).append((drift, value))
    alike: dict[tuple[tuple[HostSetting, str], ...], list[str]] = {}
    for host, differences in rows.items():
        same = tuple((drift.setting, value) for drift, value in differences)
        alike.setdefault(same, []).append(host)
    for group in alike.values():
        yield _minority(group, rows[group[0]])
    split = [drift for drift in found if drift.usual is None]
    if split:
        yield _no_majority(split)


def _minority(hosts: Sequence[str], rows: Sequence[tuple[Drift, str]]) -> Finding:
    names = [drift.setting.name for drift, _ in rows]
    total = max(drift.total for drift, _ in rows)
    differ = "differs" if len(hosts) == 1 else "differ in the same way"
    return Finding(
        severity=_severity(drift for drift, _ in rows),
        confidence=Confidence.CERTAIN,
        because=(
            f"{_few(hosts)} {differ} from the majority of {total} hosts in {_few(names)}; "
            "where the few are right, make the others equal to them"
        ),
        evidence=tuple(
            Observation(
                name=drift.setting.name,
                value=value,
                expected=drift.usual,
                source=f"{len(drift.hosts[drift.usual or ''])} of {drift.total} hosts",
            )
            for drift, value in rows
        ),
        where=Where(hosts=tuple(sorted(hosts))),
        fixes=tuple(_equal([(drift.setting, drift.usual or "") for drift, _ in rows])),
    )


def _no_majority(split: Sequence[Drift]) -> Finding:
    hosts = sorted({host for drift in split for some in drift.hosts.values() for host in some})
    names = [drift.setting.name for drift in split]
    return Finding(
        severity=_severity(split),
        confidence=Confidence.LIKELY,
        because=(
            f"the {len(hosts)} hosts differ in {_few(names)}, and no value is that of a majority; "
            "which of them is meant is yours to say"
        ),
        evidence=tuple(
            Observation(
                name=drift.setting.name,
                value=_few(
                    [f"{value} on {_few(some)}" for value, some in drift.hosts.items()], "; "
                ),
                source="no majority",
            )
            for drift in split
        ),
        where=Where(hosts=tuple(hosts)),
    )


def _severity(found: Iterator[Drift] | Sequence[Drift]) -> Severity:
    return Severity.NOTE if all(map(_slight, found)) else Severity.WARNING


def _slight(drift: Drift) -> bool:
    name, kind = drift.setting.name, drift.setting.kind
    if kind == "variable":
        return HARMLESS.fullmatch(name) is not None
    if name == "kernel" or kind == "firmware":
        return True
    if kind == "package" or name in ("Python", "driver"):
        numbers = SAME_LINE.get(name, NUMBERS)
        return len({tuple(value.split(".")[:numbers]) for value in drift.hosts}) == 1
    return False


def _equal(wanted: Sequence[tuple[HostSetting, str]]) -> Iterator[Fix]:
    """The lines that make a host equal to the others, as far as lines can."""
    lines = [line for setting, value in wanted if (line := _line(setting, value))]
    if lines:
        yield Fix(
            summary="make it equal to the others",
            paste="\n".join(lines),
            caution="the lines belong where the host's settings come from: its image, the job "
            "script, the profile",
        )
    for setting, value in wanted:
        if setting.name == "arguments":
            yield Fix(
                summary="start it with the arguments of the others",
                paste=value if value != "none" else "(no arguments)",
                language="text",
            )


def _line(setting: HostSetting, value: str) -> str:
    name = setting.name
    if HERE in value or HIDDEN in value:
        return ""
    match setting.kind:
        case "variable":
            return (
                f"unset {name}"
                if value == ABSENT["variable"]
                else f"export {name}={_quoted(value)}"
            )
        case "package":
            removed = value == ABSENT["package"]
            return f"pip uninstall -y {name}" if removed else f"pip install {name}=={value}"
        case "version" if name == "torch" and value[0].isdigit():
            return f"pip install torch=={value.partition('+')[0]}"
        case "limit" if name == "open files":
            return f"ulimit -n {value}"
        case "limit":
            return f"ulimit -l {value if value == 'unlimited' else int(value) // 1024}"
        case "job" if name == "code commit":
            return f"git checkout {value}"
    return ""


def _quoted(value: str) -> str:
    if re.fullmatch(r"[\w@%+=:,./-]+", value):
        return value
    return "'" + value.replace("'", "'\"'\"'") + "'"


def _few(names: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return separator.join(names[:FEW]) + more
