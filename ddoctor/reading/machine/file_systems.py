"""`df`, `df -h`, `df -i`: the file systems, and /dev/shm among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.evidence.host import Disk, Disks, SharedMemory
from ddoctor.reading.machine.kind import Kind, size

HEAD = re.compile(
    r"^Filesystem +(?:(?P<kind>Type) +)?(?P<unit>Size|\d+[KM]?-blocks|Inodes)"
    r" +I?Used +(?:Avail\w*|IFree) +(?:I?Use%|Capacity) +Mounted on$"
)
AMOUNT = r"[\d.,]{1,20}[BKMGTPE]?i?|-"
ROW = re.compile(
    r"^(?P<device>\S{1,300}) +(?:(?P<kind>[a-z][\w.-]{1,30}) +)?"
    rf"(?P<size>{AMOUNT}) +(?P<used>{AMOUNT}) +(?P<free>{AMOUNT})"
    r" +(?P<share>\d{1,3}%|-) +(?P<mount>/.{0,300})$"
)
SHM = "/dev/shm"
# No run writes there: system folders, and images that are always full.
SYSTEM = re.compile(
    r"^/(?:boot|dev|etc|proc|run|snap|sys|usr|var/lib/(?:docker|kubelet|snapd))(?:/|$)"
)
SMALLEST = 2**30
"""Bytes: no run saves a model to a smaller one."""
IMAGES = re.compile(r"^/dev/(?:loop|sr)\d")
READ_ONLY = {"squashfs", "iso9660", "erofs", "cvmfs2", "fuse.squashfuse"}
UNITS = {"1K-blocks": 2**10, "1M-blocks": 2**20, "512-blocks": 512, "1024-blocks": 2**10}


def _read(lines: Sequence[str]) -> Iterator[Disks | SharedMemory]:
    head = HEAD.match(lines[0])
    if head is None:
        raise ValueError("not the head of df")
    unit = UNITS.get(head["unit"], 1)
    disks = []
    # A long name of a device has a line of its own.
    rows = re.sub(r"\n {15,}", " ", "\n".join(lines[1:])).split("\n")
    for row in filter(None, map(ROW.match, rows)):
        amounts = [size(row[name], unit) for name in ("size", "used", "free")]
        total, used, free = amounts
        if total is None or used is None or free is None:
            continue
        mount, counts_files = row["mount"], head["unit"] == "Inodes"
        if mount == SHM and not counts_files:
            yield SharedMemory(size=total, free=free, filesystem=row["kind"] or "")
        small = not counts_files and total < SMALLEST
        if small or SYSTEM.match(mount) or IMAGES.match(row["device"]) or row["kind"] in READ_ONLY:
            continue
        disks.append(
            Disk(
                roles=(),
                path=mount,
                mount=mount,
                device=row["device"],
                filesystem=row["kind"] or "",
                size=0 if counts_files else total,
                free=0 if counts_files else free,
                used=None if counts_files else used,
                files=total or None if counts_files else None,
                files_free=free if counts_files and total else None,
            )
        )
    if disks:
        yield Disks(disks=tuple(disks))


KIND = Kind(
    name="df",
    holds=("mounted on",),
    begins=HEAD,
    goes_on=re.compile(rf"{ROW.pattern}|^/\S{{15,300}}$|^ {{15,}}[\d.]"),
    read=_read,
    fewest=2,
)
