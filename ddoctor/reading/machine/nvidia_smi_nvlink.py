"""`nvidia-smi nvlink`: the state of each NVLink (`-s`), and its error counters (`-e`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddoctor.evidence.gpus import Gpu, Gpus, NvLink
from ddoctor.evidence.printed import NvLinkErrors
from ddoctor.evidence.section import Section
from ddoctor.reading.machine.kind import Kind
from ddoctor.reading.machine.nvlink_counters import Counters

HEAD = re.compile(
    r"^GPU (?P<index>\d{1,3}): (?P<name>[^():]{1,80})(?:\(UUID: (?P<uuid>GPU-[\w.-]{1,60})\))?"
)
LINK = r"^\s{0,8}Link (?P<link>\d{1,3}): "
STATE = re.compile(rf"{LINK}(?:(?P<speed>\d{{1,6}}(?:\.\d{{1,6}})? GB/s)|<inactive>)$")
COUNTER = re.compile(rf"{LINK}(?P<name>[A-Za-z ]{{1,60}}): (?P<count>\d{{1,20}})$")
ALL_INACTIVE = "all links are inActive"


def _read(lines: Sequence[str]) -> Iterator[Section]:
    heads: dict[int, re.Match[str]] = {}
    links: dict[int, list[NvLink]] = defaultdict(list)
    counters = Counters()
    gpu = -1
    for line in lines:
        if head := HEAD.match(line):
            gpu = int(head["index"])
            heads[gpu] = head
        elif state := STATE.match(line):
            own = NvLink(index=int(state["link"]), active=state["speed"] is not None)
            links[gpu].append(own)
        elif found := COUNTER.match(line):
            counters.add(gpu, int(found["link"]), found["name"], found["count"])
        if ALL_INACTIVE in line:
            links[gpu] = []
    if any(links.values()):
        yield Gpus(
            gpus=tuple(
                Gpu(
                    index=index,
                    uuid=head["uuid"] or "",
                    name=head["name"].strip(),
                    memory_total=0,
                    memory_used=0,
                    nvlinks=tuple(links[index]) if index in links else None,
                )
                for index, head in sorted(heads.items())
            )
        )
    if counters.links:
        yield NvLinkErrors(links=counters.links)


KIND = Kind(
    name="nvidia-smi nvlink",
    holds=("(uuid: gpu-", "gpu 0: nvidia ", "gpu 0: tesla "),
    begins=HEAD,
    goes_on=re.compile(
        rf"{HEAD.pattern}|^\s{{0,8}}Link \d{{1,3}}[:,] "
        rf"|^\s{{0,8}}(?:NVML: )?(?:Unable to retrieve|Device does not have) .{{0,60}}(?i:nvlink)"
    ),
    read=_read,
    command=re.compile(r"(?:sudo )?nvidia-smi nvlink\b"),
    fewest=2,
)
