"""Lines of the script at which the host waits for its GPU, or copies to it.

This is about the host only: no stack shows what the GPU itself computes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from ddoctor.evidence.frames import Frame

AT_GPU, TO_GPU = "gpu-wait", "to-device"
# Calls in which the host waits for its GPU; calls in which it copies data to it.
FROM = re.compile(r"\.(item|tolist|cpu|numpy)\(|\b(synchronize|print|float)\(")
TO = re.compile(r"\.(to|cuda|copy_|pin_memory)\(|\bsend_to_device\(|\bbatch_to_device\(")


def waits(stack: Sequence[Frame]) -> bool:
    """Whether the host waits for its GPU there: the call is native code, or torch.cuda's."""
    inner = itertools.takewhile(lambda frame: not frame.of_user, reversed(stack))
    return _reads(stack, FROM) and all("torch/cuda/" in frame.file for frame in inner)


def hands_over(stack: Sequence[Frame]) -> bool:
    """Whether the host copies to its GPU there."""
    return bool(stack) and stack[-1].of_user and _reads(stack, TO)


def _reads(stack: Sequence[Frame], words: re.Pattern[str]) -> bool:
    line = next((frame for frame in reversed(stack) if frame.of_user), None)
    return line is not None and words.search(line.text) is not None
