"""The review of a launch command, on its way from `ddoctor run` to the report of rank 0.

`ddoctor run` becomes the launcher. A file in memory lasts as long as that process, and no longer.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence

VARIABLE = "DDOCTOR_REVIEW"


def give(command: Sequence[str]) -> None:
    """Read the command and its script; the ranks on this host find what they say."""
    from ddoctor.launch.review import review

    if sys.platform != "linux":
        return
    # Without its review the training runs all the same; `ddoctor doctor -- COMMAND` says why.
    with suppress(Exception):
        found = Evidence(review(command, Path()))
        file = os.memfd_create(f"ddoctor-{uuid.uuid4().hex}", flags=0)
        name = f"/proc/{os.getpid()}/fd/{file}"
        bundle.write(Path(name), found)
        os.environ[VARIABLE] = f"{name} {os.readlink(name)}"


def take(*, wanted: bool) -> Evidence:
    """What the review has found, if it is wanted; the script sees nothing of it."""
    name, _, file = os.environ.pop(VARIABLE, "").partition(" ")
    found = Evidence()
    with suppress(Exception):
        # On another host the same name belongs to another process.
        if wanted and name and os.readlink(name) == file:
            found = bundle.read(Path(name))
    with suppress(OSError):
        own = Path("/proc/self/fd", Path(name).name)
        if name and os.readlink(own) == file:
            os.close(int(own.name))
    return found
