"""The activity of a thread, by its stack and the table of frames."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ddoctor import knowledge
from ddoctor.analysis import gpu_lines, live_data_starvation
from ddoctor.analysis.loop_work import BACKWARD, HOOKS
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import KnownFrames

TRACES = "format_stack"
"""Python's function that a thread keeps its own traceback with."""
PARAMETRIZATION, OF_PARAMETRIZATIONS = "parametrization", "torch/nn/utils/parametrize.py"
"""What computes a weight at each use, and torch's file with it."""
RECOMPUTES, OF_CHECKPOINTS = "recomputes", "torch/utils/checkpoint.py"
"""What a backward pass does for a block with activation checkpointing, and torch's file with it."""
ENGINE = "_engine_run_backward"
COLLECTIVE, FORWARD, OPTIMIZER, REST = "collective", "forward", "optimizer", "rest"
# The wait for a call with async_op=True has no frame of torch, as it is native code. A thread that
# waits for a thread, an event or a process has frames of Python's library. A store waits for a key.
WAIT = re.compile(r"(?<!store)\.wait\(", re.IGNORECASE)
CLOSURE = "closure"
MOST_STACKS = 10_000


@dataclass(frozen=True)
class Met:
    """What a sample shows: an activity, the user's frames, and how many of these lead into it."""

    name: str
    calls: tuple[Frame, ...]
    entered: int
    makes: str = ""
    """The function that the loader of this process calls; torch's function of a collective; what
    a library does for the user's line."""

    @classmethod
    def of(cls, stack: tuple[Frame, ...], *, on_gpu: bool) -> Met:
        """What this stack shows."""
        name, depth = _known(stack, on_gpu=on_gpu)
        calls = tuple(frame for frame in stack if frame.of_user)
        called = live_data_starvation.called_by_fetch(stack)
        makes = called.bare if called is not None else ""
        if live_data_starvation.draws(stack):
            makes = live_data_starvation.DRAWS
        if name == COLLECTIVE and depth < len(stack):
            makes = stack[depth].bare
        if name == FORWARD and _traces(stack):
            makes = TRACES
        elif name == FORWARD and any(one.file.endswith(OF_PARAMETRIZATIONS) for one in stack):
            makes = PARAMETRIZATION
        elif name == BACKWARD and _recomputes(stack):
            makes = RECOMPUTES
        return cls(name, calls, sum(frame.of_user for frame in stack[:depth]), makes)


def _traces(stack: tuple[Frame, ...]) -> bool:
    """Whether an operation keeps its traceback, as anomaly detection of torch makes it.

    No line of the user asks for it (torch/csrc/autograd/python_anomaly_mode.cpp).
    """
    for outer, frame in pairwise(stack):
        if frame.function == TRACES and frame.file.endswith("traceback.py"):
            return "stack(" not in outer.text
    return False


def _recomputes(stack: tuple[Frame, ...]) -> bool:
    """Whether a backward pass runs a forward pass again.

    A reentrant checkpoint also begins its own backward pass there (``CheckpointFunction``).
    """
    for frame in reversed(stack):
        if frame.bare == ENGINE:
            return False
        if frame.file.endswith(OF_CHECKPOINTS):
            return True
    return False


def activity(stack: tuple[Frame, ...], *, on_gpu: bool = False) -> str:
    """Return the activity of the first row of the table with a frame on the stack.

    Without such a row, on a GPU, the user's own line decides: CUDA calls are native code
    without frames.
    """
    return _known(stack, on_gpu=on_gpu)[0]


# The same stacks are sampled again and again, and each is looked up several times.
@lru_cache(MOST_STACKS)
def _known(stack: tuple[Frame, ...], *, on_gpu: bool) -> tuple[str, int]:
    """The activity, and the number of frames that lead to the outermost frame of the row."""
    if stack and stack[-1].of_user and WAIT.search(stack[-1].text):
        return COLLECTIVE, len(stack)
    table: KnownFrames = knowledge.load(KnownFrames)
    for row in table.frame:
        for depth, frame in enumerate(stack):
            if row.innermost and depth < len(stack) - 1:
                continue
            # py-spy names methods with their class.
            if frame.bare in row.functions and frame.file.endswith(row.file):
                # Autograd's own functions, and checkpoints, have frames of torch in between.
                if row.activity == BACKWARD and stack[depth + 1].of_user:
                    inner, _ = _known(stack[depth + 1 :], on_gpu=on_gpu)
                    return OPTIMIZER if inner == OPTIMIZER else HOOKS, depth
                if row.activity == OPTIMIZER and (begin := _within_closure(stack, depth)):
                    name, more = _known(stack[begin:], on_gpu=on_gpu)
                    return name, begin + more
                return row.activity, depth
    if on_gpu and gpu_lines.waits(stack):
        return gpu_lines.AT_GPU, len(stack)
    return (gpu_lines.TO_GPU if on_gpu and gpu_lines.hands_over(stack) else REST), len(stack)


def _within_closure(stack: tuple[Frame, ...], depth: int) -> int:
    """Return where the work of a closure begins that an optimizer calls; 0: it calls none.

    By its name in torch.optim, which Lightning keeps (core/optimizer.py, optimization/closure.py).
    Its ``_wrap_closure`` and ``_after_closure`` call hooks (plugins/precision/precision.py).
    """
    places = range(len(stack) - 1, depth, -1)
    names = (place for place in places if CLOSURE in stack[place].bare)
    return next((place + 1 for place in names if place + 1 < len(stack)), 0)
