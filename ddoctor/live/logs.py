"""Reads the logs of a running job: how its exited ranks ended, and lines that tell a cause."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ddoctor.errors import DoctorError
from ddoctor.evidence.log import Log
from ddoctor.evidence.section import Section
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.reading.inputs import DAMAGE, Content, Input
from ddoctor.reading.log_endings import UNKNOWN
from ddoctor.reading.logs import LogReader

# Only the end of a log that grows for weeks.
MOST_BYTES = 32 * 2**20


def sections(
    paths: Sequence[Path], gone: Sequence[int], *, first: int, host: str, command: tuple[str, ...]
) -> Iterator[Section]:
    """Yield what these logs say about the job: of its ranks only of the exited ones.

    The stacks of running ranks say more than their log. ``first``: the lowest rank of this host.

    Raises:
        DoctorError: a file cannot be read.
    """
    reader = LogReader(first_rank=first)
    for path in paths:
        _read(reader, path)
    name = " and ".join(path.name for path in paths)
    for section in reader.sections():
        if isinstance(section, Log):
            yield replace(section, host=host)
        elif isinstance(section, TrainingRun) and (
            ranks := tuple(_ended(section.ranks, gone, host))
        ):
            yield replace(section, host=host, command=command, ranks=ranks, log=name)


def _read(reader: LogReader, path: Path) -> None:
    try:
        size = path.stat().st_size if path.is_file() else 0
        if size <= MOST_BYTES:
            one = Input(path=path, name=path.name)
            with one.opened() as content:
                reader.read(one, content)
            return
        with path.open("rb") as file:
            file.seek(-MOST_BYTES, os.SEEK_END)
            file.readline()  # the rest of a line
            tail = Input(path=path, name=f"{path.name} (its last {MOST_BYTES >> 20} MiB)")
            reader.read(tail, Content(io.BytesIO(file.read(MOST_BYTES))))
    except DAMAGE as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DoctorError(f"--log: {path} cannot be read: {why}") from None


def _ended(ranks: Sequence[RankEnding], gone: Sequence[int], host: str) -> Iterator[RankEnding]:
    """Yield how the exited ranks ended, by rank; the last exception of a rank ended it."""
    found: dict[int, RankEnding] = {}
    for one in ranks:
        # Lines without a rank are of the only one that is gone.
        rank = gone[0] if one.rank == UNKNOWN and len(gone) == 1 else one.rank
        # A line that only names an exception may be of one that the script caught.
        if rank in gone and (one.stack or one.exit_code is not None):
            found[rank] = replace(one, rank=rank, host=host)
    yield from (found[rank] for rank in sorted(found))
