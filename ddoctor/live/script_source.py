"""What the source of a running training says, where it has not changed since the start."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import psutil

from ddoctor.evidence.script import Script
from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.source import COARSE_SECONDS


def script_source(rank: RankProcess) -> Script | None:
    """Read the script of a rank; None: it is not here, or has changed since the start."""
    with suppress(psutil.Error, OSError):
        began = rank.process.create_time()
        # A script may change its folder, as with Hydra, but not its launcher's.
        for pid in (rank.process.pid, *rank.ancestors[:2]):
            folder = Path(f"/proc/{pid}/cwd").resolve(strict=True)
            # In another container, what is there is something else.
            if folder.samefile(f"/proc/{pid}/cwd"):
                found = _read(rank.script, folder, began)
                if found is not None:
                    return found
    return None


@lru_cache(maxsize=4)
def _read(words: Sequence[str], folder: Path, began: float) -> Script | None:
    """Once for all samplings of ``--watch``."""
    # The readers of launches take CPU time to load, which the ranks may need.
    from ddoctor.launch.review import source_of

    # The samples are judged without it as well.
    with suppress(Exception):
        found = source_of(words, folder)
        if found is not None and not any(
            _changed(one, words, folder, began) for one in found.files
        ):
            return found
    return None


def _changed(file: str, words: Sequence[str], folder: Path, began: float) -> bool:
    """Whether a file, from the folder that it was found in, is younger than the process."""
    script = words[1].replace(".", "/") if words[0] == "-m" else words[0]
    for root in (folder, (folder / script).parent):
        with suppress(OSError):
            if (root / file).stat().st_mtime > began + COARSE_SECONDS:
                return True
    return False
