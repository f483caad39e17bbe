"""Hosts differ in versions, driver, environment, limits, code or arguments.

All ranks of a run must do the same work. A host with another torch, thread count or commit may be
slower, or may silently train something else. It may also enter a different collective, so the run
hangs. This check compares each host with the majority; which value is right is your decision. It
ignores intended differences (ranks, addresses, paths with the host name). NCCL versions have a
separate cause.

Symptoms: one host is slower or fails while the others work. ``pip freeze``, ``env``, ``ulimit -a``,
``uname -r`` and ``git rev-parse HEAD``, compared with ``diff``, show the difference.

To fix it, use the same image, job script and commit on every host.
"""

# Above 150 lines: one finding per group of hosts, and one command per kind of setting.

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ddoctor.analysis.describe import few
from ddoctor.analysis.host_settings import ABSENT, HERE, Drift, HostSetting, drifts, settings
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.host import Kernel, Limits
from ddoctor.evidence.network import Network, Rdma
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.evidence.software import Environment, Job, Software
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# Interfaces and HCAs may have other names on each host; logs and caches change no result.
HARMLESS = re.compile(
    r"(NCCL|GLOO|TP)_SOCKET_IFNAME|NCCL_IB_HCA|NCCL_DEBUG\w*|NCCL_VERSION|\w+_(HOME|CACHE)"
)
# Releases that differ in their last number contain only bug fixes (https://semver.org, item 6). The
# first number names NVIDIA's driver branch (data center driver lifecycle).
SAME_LINE = {"driver": 1}
NUMBERS = 2


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
    """One finding per group of hosts that differ in the same way, and one without a majority."""
    others = (environments, limits, kernels, gpus, jobs, networks, rdmas)
    every = settings((*software, *(section for some in others for section in some or ())))
    found = tuple(drifts(every))
    differences: dict[str, tuple[tuple[Drift, str], ...]] = {}
    for drift in found:
        for value, hosts in drift.hosts.items() if drift.usual is not None else ():
            for host in hosts if value != drift.usual else ():
                differences[host] = (*differences.get(host, ()), (drift, value))
    for rows in dict.fromkeys(differences.values()):
        yield _minority([host for host, own in differences.items() if own == rows], rows)
    split = [drift for drift in found if drift.usual is None]
    if split:
        yield _no_majority(split)


def _minority(hosts: Sequence[str], rows: Sequence[tuple[Drift, str]]) -> Finding:
    names = [drift.setting.name for drift, _ in rows]
    total = max(drift.total for drift, _ in rows)
    differ = "differs" if len(hosts) == 1 else "differ in the same way"
    return Finding(
        severity=_severity([drift for drift, _ in rows]),
        confidence=Confidence.CERTAIN,
        because=(
            f"{few(hosts)} {differ} from the majority of {total} hosts in {few(names)}; "
            "if the minority is right, change the other hosts"
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
            f"the {len(hosts)} hosts differ in {few(names)}, and no value has a majority; "
            "which value is right is your decision"
        ),
        evidence=tuple(
            Observation(
                name=drift.setting.name,
                value=few(
                    [f"{value} on {few(some)}" for value, some in drift.hosts.items()],
                    separator="; ",
                ),
                source="no majority",
            )
            for drift in split
        ),
        where=Where(hosts=tuple(hosts)),
    )


def _severity(found: Sequence[Drift]) -> Severity:
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
    """Commands that give a host the settings of the majority, where a command can."""
    lines = [line for setting, value in wanted if (line := _line(setting, value))]
    if lines:
        yield Fix(
            summary="give it the settings of the other hosts",
            paste="\n".join(lines),
            caution="to keep the change, put the lines where the host gets its settings: its "
            "image, the job script, the shell profile",
        )
    for setting, value in wanted:
        if setting.name == "arguments":
            yield Fix(
                summary="start it with the same arguments as the other hosts",
                paste=value if value != "none" else "(no arguments)",
                language="text",
            )


def _line(setting: HostSetting, value: str) -> str:
    name = setting.name
    if HERE in value or HIDDEN in value:
        return ""
    match setting.kind:
        case "variable":
            removed = value == ABSENT["variable"]
            return f"unset {name}" if removed else f"export {name}={shlex.quote(value)}"
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
