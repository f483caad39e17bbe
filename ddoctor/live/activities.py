"""Finds the activity of a thread by its stack and the table of frames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from ddoctor import knowledge
from ddoctor.analysis import gpu_lines
from ddoctor.evidence.live import Activity, KnownFrames, Turn
from ddoctor.evidence.training import Frame
from ddoctor.live.source import Source

COLLECTIVE, REST = "collective", "rest"
# The wait for a call with async_op=True has no frame of torch, as it is native code. A thread that
# waits for a thread, an event or a process has frames of Python's library.
WAIT = re.compile(r"\.wait\(")
MOST_ACTIVITIES = 12
MOST_STACKS = 10_000


def activities(
    stacks: Sequence[tuple[Frame, ...]], source: Source, *, on_gpu: bool = False
) -> tuple[Activity, ...]:
    """Return the activities of a main thread, the most frequent first.

    ``on_gpu``: its process has the CUDA driver loaded.
    """
    names = [activity(stack, on_gpu=on_gpu) for stack in stacks]
    visits = Counter(name for name, _ in groupby(names))
    calls_of = (tuple(frame for frame in stack if frame.of_user) for stack in stacks)
    return tuple(
        Activity(
            name=name,
            samples=samples,
            visits=visits[name],
            calls=calls,
            within=source.blocks(calls),
            before_skip=source.skip(calls),
        )
        for (name, calls), samples in Counter(zip(names, calls_of, strict=True)).most_common(
            MOST_ACTIVITIES
        )
    )


def turns(stacks: Sequence[tuple[Frame, ...]], *, on_gpu: bool = False) -> tuple[Turn, ...]:
    """Return the activities of a main thread in the order of time."""
    rows = groupby(activity(stack, on_gpu=on_gpu) for stack in stacks)
    return tuple(Turn(name=name, samples=sum(1 for _ in met)) for name, met in rows)


# The same stacks are sampled again and again, and each is looked up twice.
@lru_cache(MOST_STACKS)
def activity(stack: tuple[Frame, ...], *, on_gpu: bool = False) -> str:
    """Return the activity of the first row of the table with a frame on the stack.

    Without such a row, on a GPU, the user's own line decides: CUDA calls are native code
    without frames.
    """
    if stack and stack[-1].of_user and WAIT.search(stack[-1].text):
        return COLLECTIVE
    table: KnownFrames = knowledge.load(KnownFrames)
    for row in table.frame:
        for frame in stack[-1:] if row.innermost else stack:
            # py-spy names methods with their class.
            if frame.function.rpartition(".")[2] in row.functions and frame.file.endswith(row.file):
                return row.activity
    if on_gpu and gpu_lines.waits(stack):
        return gpu_lines.AT_GPU
    return gpu_lines.TO_GPU if on_gpu and gpu_lines.hands_over(stack) else REST
