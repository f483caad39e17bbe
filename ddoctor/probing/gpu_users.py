"""Who else uses the GPUs: a probe must not disturb a run, nor be disturbed by one."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Driver and firmware hold under 1 % of a GPU's memory when no process uses it (0.5 to 0.9 GiB of an
# A100's 80). More than this without a process to be seen is one in another container.
HIDDEN_USE_ABOVE = 0.05


def occupied() -> str:
    """Why the visible GPUs must be left alone; empty when they are idle or NVML cannot say."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        return "; ".join(_users())
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()


def _users() -> Iterator[str]:
    import pynvml

    devices = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    models = {pynvml.nvmlDeviceGetName(device) for device in devices}
    # CUDA counts the fastest GPU first, NVML by bus: only among equals is an index the same.
    same_order = len(models) == 1 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    for index, device in enumerate(devices):
        if same_order and not visible(chosen, index, pynvml.nvmlDeviceGetUUID(device)):
            continue
        computing = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        drawing = pynvml.nvmlDeviceGetGraphicsRunningProcesses(device)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        if computing:
            pids = ", ".join(str(process.pid) for process in computing)
            yield f"GPU {index} is in use by process {pids} (--force measures anyway)"
        elif not drawing and memory.used > HIDDEN_USE_ABOVE * memory.total:
            yield (
                f"GPU {index} has {memory.used / 2**30:.1f} GiB in use by a process that cannot be "
                "seen from here (--force measures anyway)"
            )


def visible(chosen: str | None, index: int, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES, which is ``chosen``, lets a process see this GPU."""
    if chosen is None:
        return True
    entries = [entry.strip() for entry in chosen.split(",")]
    return any(entry == str(index) or (entry and uuid.startswith(entry)) for entry in entries)
