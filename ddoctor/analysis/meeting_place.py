"""Addresses at which the ranks cannot meet: not the first host's, or another one on each host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.local_address import LOCAL
from ddoctor.analysis.mistake import Mistake
from ddoctor.analysis.rendezvous_mistakes import ENDPOINTS
from ddoctor.analysis.script_source import option
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceSetting
from ddoctor.models import Confidence, Fix, Severity

# The numbers that Slurm and MPI give to hosts and tasks, 0 on the first host.
OWN_NUMBERS = re.compile(
    r"\$\{?(?:SLURM_(?:NODEID|PROCID)|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)\}?"
)
# `scontrol show hostnames` writes the hosts in the order of their numbers, one a line.
OF_ALL_HOSTS = re.compile(r"scontrol\s+show\s+hostnames?\b")
LAST_PART = re.compile(
    r"\|\s*(?:tail\s+(?:-n\s*)?-?1|sed\s+-n\s+['\"]?(?:[2-9]|\$)p['\"]?"
    r"|awk\s+['\"]NR\s*==\s*[2-9]['\"])\s*(?:\)|`)"
)
OF_LATER_ELEMENT = re.compile(r"\$\{\w*(?:node|host)\w*\[(?:-1|[1-9]\d*)\]\}", re.IGNORECASE)
"""An element of a list of hosts, but not its first one."""
STATIC = (None, "static")
"""Rendezvous of torchrun in which host 0 has the store; with c10d, the endpoint's host has it."""
ADDRESS = "os.environ[MASTER_ADDR]"
OR_LOCAL = re.compile(r"os\.(?:environ\.(?:get|setdefault)|getenv)\(.MASTER_ADDR., (?P<value>.*)\)")
BY_TASKS = ("srun", "mpirun", "mpiexec")
OF_TCP = re.compile(r"(?:f?['\"])?tcp://(?P<host>[^:/'\"{}]+)[:/]")


def misplaced(plan: LaunchPlan) -> Iterator[Mistake]:
    """The address of a host that is not the first one, which has rank 0 and the store.

    Source: torch/distributed/rendezvous.py, _env_rendezvous_handler: rank 0 makes the store, and
    all others connect to MASTER_ADDR.
    """
    launch, meets = plan.launch, meeting(plan.launch)
    if meets is None or not _rank_0_is_first(launch):
        return
    address, listed = meets.value.partition(":")[0], launch.get("host-names", "srun.nodelist")
    names = _in_order(listed) if listed is not None else []
    several = (launch.hosts or 1) > 1
    if listed is not None and _is_later(address, names):
        yield _not_the_first(meets, f"{','.join(names)} ({listed.at})", names[0])
    elif several and OF_ALL_HOSTS.search(meets.value) and LAST_PART.search(meets.value):
        yield _not_the_first(meets, "the job", "")
    elif several and OF_LATER_ELEMENT.match(meets.value):
        # What the array holds is not known here.
        yield replace(
            _not_the_first(meets, "the job", ""),
            confidence=Confidence.POSSIBLE,
            severity=Severity.WARNING,
        )


def meeting(launch: Launch) -> Setting | None:
    """The address that the launch gives to the ranks; None: not known here."""
    # Plain processes, as srun starts them, read the address from the environment.
    own = ("env.MASTER_ADDR",) if launch.launcher == "python" else ()
    return launch.get(*ENDPOINTS, *own)


def _rank_0_is_first(launch: Launch) -> bool:
    """Whether rank 0, and with it the store, is on the first host of the list."""
    if launch.launcher in ("deepspeed", "python"):
        return launch.get("srun.distribution", "mpirun.rank_by") is None
    backend, number = launch.get("rendezvous"), launch.get("host-rank")
    counted = number is not None and OWN_NUMBERS.fullmatch(number.value) is not None
    return counted and (backend.value if backend is not None else None) in STATIC


def _in_order(listed: Setting) -> list[str]:
    """The hosts of a list; Slurm sorts those of ``--nodelist`` by name, whatever their order."""
    names = listed.value.split(",")
    if listed.name == "host-names":
        return names
    # What brackets abbreviate is not read.
    return [] if "[" in listed.value else sorted(names, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _is_later(address: str, names: list[str]) -> bool:
    """Whether a list has this host, with or without a domain, and not as its first one."""
    if address in names:
        return names.index(address) > 0
    numeric = address.replace(".", "").isdigit()
    short = [] if numeric else [one.partition(".")[0] for one in names]
    name = address.partition(".")[0]
    return short.count(name) == 1 and short.index(name) > 0


def _not_the_first(meets: Setting, of: str, first: str) -> Mistake:
    listed = "scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1"
    return Mistake(
        because=f"the ranks look for rank 0 at {meets.value} ({meets.at}), and rank 0 is on the "
        f"first host of {of}: they wait for it until a timeout",
        at=meets,
        fix=Fix(
            summary="give the address of the first host", paste=first or f"MASTER_ADDR=$({listed})"
        ),
        confidence=Confidence.LIKELY,
    )


def local_in_the_script(plan: LaunchPlan, script: Script) -> Iterator[Mistake]:
    """The script lets the ranks of several hosts meet at a local address, whatever starts them."""
    launch, hosts = plan.launch, plan.launch.hosts or 1
    if hosts < 2:
        return
    joins = [
        one
        for one in script.of("torch.distributed.init_process_group")
        if "condition" not in one.within
    ]
    for call in joins:
        given = call.argument("init_method", 1) or ""
        known = option(given, script, launch)
        text = known.value if known is not None else given
        if (match := OF_TCP.match(text)) and match["host"] in LOCAL:
            yield _local(hosts, call.at.file, call.at.line, text)
            return
    sets = [one for one in script.settings if one.name == ADDRESS]
    # A rank that joins elsewhere may have another address.
    places = {(one.at.file, one.at.function) for one in joins}
    for one in sets if len(sets) == 1 else ():
        by_default = OR_LOCAL.fullmatch(one.value)
        runs = not one.within and (not one.at.function or (one.at.file, one.at.function) in places)
        if not runs or (by_default is not None and not _only_default(launch)):
            continue
        if joins and _value(one, by_default, script, launch) in LOCAL:
            yield _local(hosts, one.at.file, one.at.line, one.at.text)


def _only_default(launch: Launch) -> bool:
    """Whether nothing but the script gives an address to the ranks that a scheduler starts."""
    by_tasks = launch.launcher == "python" and bool({*launch.around} & {*BY_TASKS})
    # A shell may have exported one before the command was typed.
    return by_tasks and bool(launch.file) and launch.get("env.MASTER_ADDR") is None


def _value(
    one: SourceSetting, by_default: re.Match[str] | None, script: Script, launch: Launch
) -> str:
    text = by_default["value"] if by_default is not None else one.value
    if text[:1] in "'\"":
        return text.strip("'\"")
    known = option(text, script, launch)
    return known.value if known is not None else ""


def _local(hosts: int, file: str, line: int, text: str) -> Mistake:
    at = Setting(name="MASTER_ADDR", value=text, file=file, line=line)
    return Mistake(
        because=f"{hosts} hosts would meet at the local address that the script sets at {at.at} "
        f"(`{text}`): a different place on each of them",
        at=at,
        fix=Fix.python(
            summary="let the launch give the address of the first host",
            paste='os.environ.setdefault("MASTER_ADDR", "localhost")  # for one host alone\n'
            "# and where the launch does not set it: export MASTER_ADDR=FIRST_HOST",
        ),
        confidence=Confidence.LIKELY,
    )
