"""A sound host with 2×48 cores and 2 TiB."""

from __future__ import annotations

from ddoctor.evidence.host import SharedMemory

HOST = "node-1"
GIB = 2**30

SECTIONS = (SharedMemory(host=HOST, filesystem="tmpfs", size=1024 * GIB, free=1020 * GIB),)
