"""Reads DeepSpeed's hostfile: a line such as ``worker-1 slots=8`` for each host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ddoctor.evidence.launch import Setting
from ddoctor.launch import files

# deepspeed/launcher/runner.py, _parse_hostfile.
HOST = re.compile(r"\s*(?P<host>\S+)\s+slots=(?P<slots>\d{1,6})\s*(?:#.*)?")


def read(name: str, folder: Path) -> Iterator[Setting]:
    """Yield the number of hosts, and of ranks on each where all have the same.

    Raises:
        DoctorError: the file cannot be read.
    """
    path = folder / name
    if not files.is_there(path):
        # DeepSpeed then starts on this host alone.
        return
    lines = files.text(path, name).splitlines()
    rows = [match for line in lines if (match := HOST.fullmatch(line)) and line.strip()[0] != "#"]
    slots = {match["slots"] for match in rows}
    if rows:
        yield Setting(name="hosts", value=str(len(rows)), file=name)
    if len(slots) == 1:
        yield Setting(name="ranks-per-host", value=slots.pop(), file=name)
