"""A thread that writes numbers down now and then."""

from __future__ import annotations

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from tests.healthy.host import HOST
from tests.healthy.probes import PLACES

SECTIONS = (
    ScriptThreads(
        host=HOST,
        threads=tuple(
            ScriptThread(
                rank=place.rank,
                place=Frame(
                    file="train.py", line=31, function="write", text="queue.get()", of_user=True
                ),
                cpus=0.02,
                seconds=40.0,
            )
            for place in PLACES
        ),
    ),
)
