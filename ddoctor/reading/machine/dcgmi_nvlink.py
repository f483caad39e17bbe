"""`dcgmi nvlink`: the state of each NVLink (`-s`), and its error counters (`-e`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.gpus import Gpu, Gpus, NvLink
from ddoctor.evidence.printed import NvLinkErrors
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.nvlink_counters import Counters

# dcgmi/Nvlink.cpp of DCGM: Up, Down, Disabled, Not Supported.
STATES = r"[UDX_](?: [UDX_]){0,600}"
OWNER = re.compile(
    rf"^\s{{2,8}}(?P<kind>gpuId|physicalId) (?P<number>\d{{1,9}}):\s{{0,16}}(?P<states>{STATES})?$"
)
ROW = re.compile(rf"^\s{{4,16}}(?P<states>{STATES})$")
LINKED = ("U", "D")
"""States of a link that is meant to be up."""

GPU = re.compile(r"^\|\s{1,4}GPU (\d{1,3})\s{0,90}\|$")
LINK = re.compile(r"^\|\s{1,4}Link (\d{1,3})\s{1,40}\|")
COUNTER = re.compile(
    r"^\|\s{1,4}-> (?P<name>[A-Za-z ]{1,40})\|\s{0,4}(?P<count>\d{1,20})\s{0,60}\|$"
)


def _states(lines: Sequence[str]) -> Iterator[Gpus]:
    gpus: dict[int, str] = {}
    switches = ""
    owner = None
    for line in lines:
        owner = OWNER.match(line) or owner
        found = OWNER.match(line) or ROW.match(line)
        if owner is None or found is None or not found["states"]:
            continue
        if owner["kind"] == "gpuId":
            gpus[int(owner["number"])] = found["states"]
        else:
            switches += found["states"]
    if not gpus:
        return
    # Ports of a switch may have no partner, so only the ends at the GPUs are judged.
    remote = "switch" if "U" in switches else ""
    yield Gpus(
        gpus=tuple(
            Gpu(
                index=index,
                name="",
                memory_total=0,
                memory_used=0,
                nvlinks=tuple(
                    NvLink(index=link, active=state == "U", remote=remote)
                    for link, state in enumerate(states.split(" "))
                    if state in LINKED
                ),
            )
            for index, states in sorted(gpus.items())
        )
    )


def _errors(lines: Sequence[str]) -> Iterator[NvLinkErrors]:
    counters = Counters()
    gpu = link = 0
    for line in lines:
        if head := GPU.match(line):
            gpu = int(head[1])
        elif head := LINK.match(line):
            link = int(head[1])
        elif found := COUNTER.match(line):
            counters.add(gpu, link, found["name"].strip(), found["count"])
    if counters.links:
        yield NvLinkErrors(links=counters.links)


STATUS = Kind(
    name="dcgmi nvlink -s",
    holds=("nvlink link status",),
    begins=re.compile(r"^\|\s{1,4}NvLink Link Status\s{1,4}\|$"),
    goes_on=re.compile(
        rf"{OWNER.pattern.replace('?P<states>', '?:').replace('?P<kind>', '?:')}"
        rf"|^\s{{4,16}}{STATES}$"
        r"|^\+-{5,40}\+$|^(?:GPUs|NvSwitches|Key):|^\s{2,16}(?:No |Link Entities|\d{1,4}:\d)"
    ),
    read=_states,
    fewest=3,
)
ERRORS = Kind(
    name="dcgmi nvlink -e",
    holds=("nvlink error counts",),
    begins=re.compile(r"^\|\s{1,4}NVLINK Error Counts\s{1,90}\|$"),
    goes_on=re.compile(r"^[|+][ =-].{10,200}[|+]$"),
    read=_errors,
    fewest=3,
)
