"""Read speed of the data folder: large files in one stream, and many small files."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from ddoctor.evidence.probes import StorageRead
from ddoctor.probing.world import ProbeWorld, Skip, by_host

USES_DEVICE = False

LISTING_SECONDS = 1.0

LARGE_SECONDS = 4.0
LARGE_BYTES = 2**30
# Less than this tells of latency, not of a stream.
LARGE_FROM = 2**24

SMALL_SECONDS = 3.0
SMALL_FILES = 500
# A JPEG of ImageNet has 110 KB on average.
SMALL_UP_TO = 2**17

CHUNK = 2**23

# The share of the bytes that must have come from the storage itself for the figure to be cold.
COLD_FROM = 0.9


class StorageReading(NamedTuple):
    """Bytes or files read, and the seconds."""

    files: int
    bytes: int
    seconds: float


def measure(world: ProbeWorld) -> StorageRead | None:
    """The first rank of each host reads, all hosts at once, and each a part of the files.

    It only reads: existing files, dropped from the page cache first.
    """
    readers = by_host(world.places())
    reads = readers[world.host][0] == world.rank
    world.doing(f"listing {world.data}")
    files = list(_files(world.data)) if reads else []
    large = [path for size, path in sorted(files, reverse=True) if size >= LARGE_FROM]
    small = sorted(path for size, path in files if 0 < size <= SMALL_UP_TO)
    if not world.agree(bool(large or small)):
        raise Skip(f"{world.data} holds no files to read; name the data folder with --data")
    world.meet()
    if not reads:
        return None
    number = list(readers).index(world.host)
    large = _part(large, number, len(readers))
    small = _part(small, number, len(readers))[:SMALL_FILES]
    before = _from_storage()
    share = world.share_of_time
    stream = _read(world, large, LARGE_SECONDS * share, LARGE_BYTES)
    many = _read(world, small, SMALL_SECONDS * share, LARGE_BYTES)
    after = _from_storage()
    cold = None
    if before is not None and after is not None:
        cold = after - before >= COLD_FROM * (stream.bytes + many.bytes)
    return StorageRead(
        host=world.host if len(readers) > 1 else "",
        path=str(world.data),
        filesystem=_filesystem(world.data),
        sequential=stream.bytes / 1e6 / stream.seconds if stream.bytes else None,
        sequential_bytes=stream.bytes,
        small_files=many.files / many.seconds if many.files else None,
        small_file_count=many.files,
        small_file_bytes=many.bytes,
        cold=cold,
        readers=len(readers),
    )


def _part(paths: list[Path], number: int, readers: int) -> list[Path]:
    """One reader's files; all readers share them if there are fewer files than readers."""
    return paths[number::readers] if len(paths) >= readers else paths


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Sizes and paths, as far as they can be listed in time; hidden folders do not count."""
    deadline = time.monotonic() + LISTING_SECONDS
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
                    yield status.st_size, path
            if time.monotonic() > deadline:
                return


def _read(world: ProbeWorld, paths: Sequence[Path], seconds: float, most: int) -> StorageReading:
    """Read whole files one after another, until the time or the bytes are used up."""
    _drop(paths)
    buffer = bytearray(CHUNK)
    count = total = 0
    begin = time.perf_counter()
    for path in paths:
        world.doing(f"reading {path}")
        with suppress(OSError), path.open("rb", buffering=0) as file:
            while (size := file.readinto(buffer)) and total < most:
                total += size
                if time.perf_counter() - begin > seconds:
                    break
            count += 1
        if total >= most or time.perf_counter() - begin > seconds:
            break
    return StorageReading(count, total, time.perf_counter() - begin)


def _drop(paths: Sequence[Path]) -> None:
    """Ask the kernel to drop these files' pages, as far as no other process uses them."""
    for path in paths:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _from_storage() -> int | None:
    """Bytes that this process has read from storage so far; None: not reported."""
    with suppress(psutil.Error, OSError):
        return int(psutil.Process().io_counters().read_bytes)
    return None


def _filesystem(folder: Path) -> str:
    """The type of a folder's file system."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[path] for path in (folder, *folder.parents) if path in mounts), "")
