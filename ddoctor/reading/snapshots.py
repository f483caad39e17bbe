"""Reads the memory snapshots of a run, a file of each rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ddoctor.evidence.memory_snapshot import DeviceMemory, MemorySnapshots
from ddoctor.reading import memory_snapshot, prefixes
from ddoctor.reading.inputs import Content, Input


def is_snapshot(first: bytes) -> bool:
    """Whether a file may be one, by its first bytes; its first segment comes before all events."""
    return first.startswith(b"\x80") and (b"segment_type" in first or b"device_traces" in first)


@dataclass
class Snapshots:
    """Those of one run."""

    _found: dict[object, tuple[str, tuple[DeviceMemory, ...]]] = field(default_factory=dict)
    """By rank, or by file where its name says no rank."""

    def read(self, given: Input, content: Content) -> None:
        """Read the snapshot of one rank; its name may say which, such as ``oom_rank3.pickle``.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged, or another file is of the same rank.
        """
        rank = prefixes.of_file(given.path).rank
        key = given.name if rank is None else rank
        if key in self._found:
            raise ValueError(
                f"{self._found[key][0]} is a snapshot of the same rank: give those of one moment"
            )
        self._found[key] = given.name, memory_snapshot.devices(content, rank, given.name)

    def sections(self) -> Iterator[MemorySnapshots]:
        """What the snapshots say."""
        if not self._found:
            return
        devices = (one for _, rows in self._found.values() for one in rows)
        yield MemorySnapshots(
            files=tuple(name for name, _ in self._found.values()),
            devices=tuple(sorted(devices, key=_order)),
        )


def _order(one: DeviceMemory) -> tuple[bool, int, str, int]:
    return one.rank is None, one.rank or 0, one.file, one.device
