"""Whether a CUDA graph is being captured: its kernels run later, and many CUDA calls end it."""

from __future__ import annotations

from typing import Any

import torch


def capturing() -> bool:
    """Whether what this thread launches becomes a part of a graph."""
    # The question alone would initialise CUDA, after which the script could not fork.
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
