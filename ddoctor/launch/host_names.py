"""The names of the hosts on which a launcher starts ranks, those of rank 0 first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files

NAME = "host-names"
# docs.open-mpi.org, mpirun: ``node1 slots=8``, ``node1``; mpich's mpiexec: ``node1:8``.
ROW = re.compile(
    r"\s*(?P<host>[\w.-]+)(?::(?P<number>\d+))?(?:\s+slots=(?P<slots>\d+))?(?:\s+[\w-]+=\S+)*"
    r"\s*(?:#.*)?"
)


def named(hosts: Iterable[str], at: Setting) -> Setting:
    """The setting that names them; ``at``: where they are written."""
    value = ",".join(dict.fromkeys(hosts))
    return Setting(name=NAME, value=value, file=at.file, line=at.line, origin=at.origin)


def of_mpirun(settings: Sequence[Setting], folder: Path) -> list[Setting]:
    """Those of ``--host n1:8,n2:8`` or of a hostfile, and their number where ranks fill them all.

    None: they are not known here.
    """
    given = {one.name: one for one in reversed(settings)}
    if (one := given.get("mpirun.host")) is not None:
        return [named((part.partition(":")[0] for part in one.value.split(",")), one)]
    one = given.get("mpirun.hostfile")
    if one is None or not files.is_there(folder / one.value):
        return []
    lines = files.text(folder / one.value, one.value).splitlines()
    matches = [ROW.fullmatch(line) for line in lines if line.strip() and line.strip()[0] != "#"]
    rows = [row for row in matches if row is not None]
    if not rows or len(rows) < len(matches):
        return []
    at, tasks = Setting(name=NAME, value="", file=one.value), given.get("tasks")
    slots = sum(int(row["slots"] or row["number"] or 0) for row in rows)
    filled = tasks is not None and tasks.number == slots
    hosts = [Setting(name="hosts", value=str(len(rows)), file=one.value)] if filled else []
    return [named((row["host"] for row in rows), at), *hosts]
