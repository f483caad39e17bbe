"""The NVIDIA driver itself crashes or hangs, with a version or on a machine where others do not.

The same program runs on a machine with another driver. The crash is in the driver's library, below
calls that NCCL or torch make everywhere.

Symptoms: a segmentation fault with frames of libcuda on top of the stack, or a hang of two GPUs on
one server out of several that are alike.

To fix it, install another driver version. Until then, switch off the feature that meets the bug.
"""

from __future__ import annotations

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")
