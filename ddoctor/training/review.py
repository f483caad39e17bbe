"""The review of a launch command, on its way from `ddoctor run` to the report of rank 0.

`ddoctor run` becomes the launcher. A file in memory lasts as long as that process, and no longer.
Where nothing was handed over, as on another host, rank 0 reads the source of the script itself.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddoctor.evidence.section import Evidence

VARIABLE = "DDOCTOR_REVIEW"


def give(command: Sequence[str]) -> Evidence:
    """Read the command and its script; the ranks on this host find what they say, too."""
    from ddoctor.evidence import bundle
    from ddoctor.evidence.section import Evidence
    from ddoctor.launch.review import review

    found = Evidence()
    if sys.platform != "linux":
        return found
    # Without its review the training runs all the same; `ddoctor doctor -- COMMAND` says why.
    with suppress(Exception):
        found = Evidence(review(command, Path()))
        file = os.memfd_create(f"ddoctor-{uuid.uuid4().hex}", flags=0)
        name = f"/proc/{os.getpid()}/fd/{file}"
        bundle.write(Path(name), found)
        os.environ[VARIABLE] = f"{name} {os.readlink(name)}"
    return found


def take(*, wanted: bool) -> bytes:
    """What the review has found, if it is wanted, not yet read: the script is to start soon.

    The script sees nothing of it.
    """
    name, _, file = os.environ.pop(VARIABLE, "").partition(" ")
    found = b""
    with suppress(OSError):
        # On another host the same name belongs to another process.
        if wanted and name and os.readlink(name) == file:
            found = Path(name).read_bytes()
    with suppress(OSError):
        own = Path("/proc/self/fd", Path(name).name)
        if name and os.readlink(own) == file:
            os.close(int(own.name))
    return found


def read(taken: bytes, script: Sequence[str]) -> Evidence:
    """The evidence of what was taken, or else of the script's source; empty: there is none.

    ``script``: its file, or ``-m`` and its module, and its arguments.
    """
    from ddoctor.evidence import bundle
    from ddoctor.evidence.section import Evidence
    from ddoctor.launch.review import source_of

    with suppress(Exception):
        if taken:
            return bundle.decoded(taken, Path(VARIABLE))
        source = source_of(script, Path())
        return Evidence([source] if source is not None else [])
    return Evidence()
