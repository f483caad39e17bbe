"""`nvidia-smi`: the table of GPUs, and its processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus
from ddoctor.evidence.printed import GpuProcesses, ListedProcess
from ddoctor.reading.machine.kind import Kind, bus_id, number

VERSIONS = re.compile(
    r"NVIDIA-SMI (?P<tool>[\d.]{1,20}).{0,60}?Driver Version: (?P<driver>[\d.]{1,20})"
    r"(?:.{0,60}?CUDA Version: (?P<major>\d{1,3})\.(?P<minor>\d{1,3}))?"
)
# Of drivers 418 to 595, whose columns have different widths.
FIRST_ROW = re.compile(
    r"^\|\s*(?P<index>\d{1,3})\s+(?P<name>\S.{0,80}?)\s+(?P<mode>On|Off|N/A|WDDM|TCC|MCDM)\s*\|"
    r"\s*(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+\S{1,10}\s*\|"
    r"\s*(?P<ecc>\S{1,20})\s*\|"
)
PROCESS = re.compile(
    r"^\|\s*(?P<gpu>\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(?P<pid>\d{1,10})\s+"
    r"(?P<kind>[CGM+]{1,5})\s+(?P<name>\S.{0,200}?)\s+(?:(?P<memory>\d{1,9})MiB|N/A)?\s*\|"
)
MEMORY = re.compile(r"(\d{1,9})\s*MiB\s*/\s*(\d{1,9})\s*MiB")
POWER = re.compile(r"(\d{1,5})\s*W\s*/\s*(\d{1,5})\s*W")
COMPUTE_MODES = {
    "Default": "default",
    "E. Process": "exclusive_process",
    "Prohibited": "prohibited",
}
ERROR = "ERR!"


def _read(lines: Sequence[str]) -> Iterator[Gpus]:
    head = next(filter(None, map(VERSIONS.search, lines)), None)
    gpus = [*_gpus(lines)]
    if head is None or not gpus:
        return
    held = _processes(lines)
    yield Gpus(
        driver=head["driver"],
        cuda=(int(head["major"]), int(head["minor"])) if head["major"] else None,
        gpus=tuple(
            Gpu(**fields, processes=None if held is None else tuple(held.get(fields["index"], ())))
            for fields in gpus
        ),
    )


def _gpus(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for place, line in enumerate(lines):
        if not (row := FIRST_ROW.match(line)):
            continue
        fields: dict[str, Any] = {
            "index": int(row["index"]),
            "name": row["name"],
            "bus_id": bus_id(row["bus"]),
            "memory_total": 0,
            "memory_used": 0,
            "persistence": {"On": True, "Off": False}.get(row["mode"]),
            "ecc_uncorrected_volatile": number(row["ecc"]),
            "ecc_enabled": False if row["ecc"] == "Off" else True if row["ecc"].isdigit() else None,
        }
        if row["name"] == ERROR and row["ecc"] == ERROR:
            yield {**fields, "name": "", "lost": True, "error": ERROR}
            continue
        for more in lines[place + 1 : place + 3]:
            if FIRST_ROW.match(more) or more.count("|") < 4:
                break
            fields |= _of_cells(more.strip().strip("|").split("|"))
        yield fields


def _of_cells(cells: Sequence[str]) -> dict[str, Any]:
    """The fields of a GPU in the second and third row of it."""
    if len(cells) != 3:
        return {}
    fields: dict[str, Any] = {}
    first, second, third = cells
    if heat := re.search(r"\b(\d{1,3})C\b", first):
        fields["temperature"] = int(heat[1])
    if state := re.search(r"\bP(\d{1,2})\b", first):
        fields["performance_state"] = int(state[1])
    if power := POWER.search(first):
        fields |= {"power": float(power[1]), "power_limit": float(power[2])}
    if memory := MEMORY.search(second):
        fields |= {
            "memory_used": int(memory[1]) * 2**20,
            "memory_total": int(memory[2]) * 2**20,
        }
    if busy := re.search(r"\b(\d{1,3})%", third):
        fields["utilisation"] = int(busy[1])
    for words, mode in COMPUTE_MODES.items():
        if third.rstrip().endswith(words):
            fields["compute_mode"] = mode
    if mig := re.fullmatch(r"\s*(Enabled|Disabled)\*?\s*", third):
        fields["mig"] = mig[1] == "Enabled"
    return fields


def _processes(lines: Sequence[str]) -> dict[int, list[GpuProcess]] | None:
    """The processes by GPU; None: the list was cut off."""
    begins = next((place for place, line in enumerate(lines) if "Processes:" in line), None)
    if begins is None or not lines[-1].startswith("+"):
        return None
    found: dict[int, list[GpuProcess]] = {}
    for line in lines[begins:]:
        if row := PROCESS.match(line):
            found.setdefault(int(row["gpu"]), []).append(
                GpuProcess(
                    pid=int(row["pid"]),
                    memory=int(row["memory"]) * 2**20 if row["memory"] else None,
                    name=row["name"],
                    holder="unknown",
                )
            )
    return found


KIND = Kind(
    name="nvidia-smi",
    holds=("| nvidia-smi ",),
    begins=re.compile(r"^\| NVIDIA-SMI \d"),
    goes_on=re.compile(r"^(?:\|(?! NVIDIA-SMI \d)|\+[-=+]{20})"),
    read=_read,
)


def _listed(lines: Sequence[str]) -> Iterator[GpuProcesses]:
    rows = [row for row in map(PROCESS.match, lines) if row is not None and row["memory"]]
    if rows:
        yield GpuProcesses(
            processes=tuple(
                ListedProcess(
                    gpu=int(row["gpu"]),
                    pid=int(row["pid"]),
                    name=row["name"],
                    memory=int(row["memory"]) * 2**20,
                )
                for row in rows
            )
        )


PROCESSES = Kind(
    name="the processes of nvidia-smi",
    holds=("processes:  ", "mib |", "mib|"),
    begins=re.compile(rf"^\|\s*Processes: |{PROCESS.pattern}"),
    goes_on=re.compile(r"^(?:\|(?! NVIDIA-SMI \d)|\+[-=+]{20})"),
    read=_listed,
)
