"""What the options of mpirun and mpiexec say beyond their own values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files, host_names
from ddoctor.launch.option_source import Parsed
from ddoctor.launch.shell import ASSIGNMENT
from ddoctor.launch.words import Word

OF_HYDRA = frozenset(
    {"ppn", "hosts", "f", "genv", "env", "genvlist", "envlist", "genvall", "envall", "launcher"}
)
"""Options that only MPICH and Intel MPI know; these pass on the whole environment
(src/pm/hydra/mpiexec/options.c, -genvall)."""
# docs.open-mpi.org, mpirun: ``node1 slots=8``, ``node1``; mpich's mpiexec: ``node1:8``.
ROW = re.compile(
    r"\s*(?P<host>[\w.-]+)(?::(?P<number>\d+))?(?:\s+slots=(?P<slots>\d+))?(?:\s+[\w-]+=\S+)*"
    r"\s*(?:#.*)?"
)
# docs.open-mpi.org, mpirun: ``--map-by ppr:8:node`` starts eight processes on each host.
PER_HOST = re.compile(r"(?:ppr:)?(?P<number>\d+):node(?::.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class _Host:
    name: str
    slots: int
    """0: not known."""


def read(settings: Sequence[Setting], parsed: Parsed, folder: Path) -> Iterator[Setting]:
    """The names and numbers of hosts and processes that follow from these options."""
    given = {one.name: one for one in reversed(settings)}
    hydra = [one.key for one in parsed.given if one.key in OF_HYDRA]
    yield from (Setting(name="mpirun.hydra", value=key) for key in hydra[:1])
    each = next(_per_host(given), None)
    if each is not None:
        yield each
    at, hosts = _hosts(given, folder)
    if at is None or not hosts:
        return
    yield host_names.named((one.name for one in hosts), at)
    slots = sum(one.slots for one in hosts) if all(one.slots for one in hosts) else None
    tasks = given.get("tasks")
    count = with_fields(at, name="hosts", value=str(len({one.name for one in hosts})))
    per_host = each or given.get("tasks-per-host")
    if tasks is None and per_host is None and slots and not hydra:
        # Without -n, Open MPI starts a process for each slot.
        yield from (with_fields(at, name="tasks", value=str(slots)), count)
    elif tasks.number == slots if tasks is not None else per_host is not None:
        yield count


def _per_host(given: Mapping[str, Setting]) -> Iterator[Setting]:
    for name in ("mpirun.map_by", "mpirun.ppr"):
        one = given.get(name)
        if one is not None and (match := PER_HOST.fullmatch(one.value)):
            yield with_fields(one, name="tasks-per-host", value=match["number"])
    if (one := given.get("mpirun.pernode")) is not None:
        yield with_fields(one, name="tasks-per-host", value="1")


def _hosts(given: Mapping[str, Setting], folder: Path) -> tuple[Setting | None, list[_Host]]:
    """Those of ``--host n1:8,n2:8`` or of a hostfile, and where they are written."""
    for name in ("mpirun.host", "mpirun.hosts"):
        if (one := given.get(name)) is not None:
            parts = [part.partition(":") for part in one.value.split(",")]
            slots = [int(number) if number.isdigit() else 1 for _, _, number in parts]
            return one, [_Host(host, each) for (host, *_), each in zip(parts, slots, strict=True)]
    one = given.get("mpirun.hostfile", given.get("mpirun.f"))
    if one is None or not files.is_there(folder / one.value):
        return None, []
    lines = files.text(folder / one.value, one.value).splitlines()
    rows = [ROW.fullmatch(line) for line in lines if line.strip() and line.strip()[0] != "#"]
    found = [
        _Host(row["host"], int(row["slots"] or row["number"] or 0))
        for row in rows
        if row is not None
    ]
    at = Setting(name=one.name, value="", file=one.value)
    return at, found if len(found) == len(rows) else []


def variables(words: Sequence[Word], parsed: Parsed) -> Iterator[Setting]:
    """What ``-x NAME=VALUE`` of Open MPI and ``-genv NAME VALUE`` of MPICH set for the ranks."""
    for one in parsed.given:
        word = words[min(one.word + 1, len(words) - 1)]
        if one.key == "x" and (match := ASSIGNMENT.fullmatch(one.value)):
            yield word.setting(match["name"], match["value"])
        elif one.key in ("genv", "env"):
            name, _, value = one.value.partition(" ")
            yield word.setting(name, value)
