"""Other processes on the GPUs: a probe must not slow a run, nor measure next to one.

`python -m ddoctor.probing.gpu_users` writes ``UsableGpus`` as JSON. It is a separate process,
because importing torch takes seconds and hangs on a broken disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from ddoctor.collect import CannotSee
from ddoctor.collect.nvml import session
from ddoctor.proc.parent import end_with_parent

# Driver and firmware hold under 1 % of a GPU's memory when no process uses it (0.5 to 0.9 GiB of an
# A100's 80). More than this without a visible process means a process in another container.
HIDDEN_USE_ABOVE = 0.05


class UsableGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of GPUs that torch sees on this host, and whether they are free."""

    count: int
    in_use: str
    """Why probes must not use them; empty: they are idle."""


def occupied() -> str:
    """Why probes must not use the visible GPUs; empty: they are idle, or NVML cannot tell."""
    import pynvml

    try:
        with session():
            return "; ".join(_users())
    except (CannotSee, pynvml.NVMLError):
        return ""


def _users() -> Iterator[str]:
    import pynvml

    devices = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    models = {pynvml.nvmlDeviceGetName(device) for device in devices}
    # CUDA lists the fastest GPU first, NVML sorts by bus: indices agree only for equal models.
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
                f"GPU {index} has {memory.used / 2**30:.1f} GiB in use by a process that is not "
                "visible from here (--force measures anyway)"
            )


def visible(chosen: str | None, index: int, uuid: str) -> bool:
    """Whether a process sees this GPU if CUDA_VISIBLE_DEVICES is ``chosen``."""
    if chosen is None:
        return True
    entries = [entry.strip() for entry in chosen.split(",")]
    return any(entry == str(index) or (entry and uuid.startswith(entry)) for entry in entries)


if __name__ == "__main__":
    from ddoctor.probing.world import usable_gpus

    end_with_parent()
    count = usable_gpus()
    found = UsableGpus(count=count, in_use=occupied() if count else "")
    print(msgspec.json.encode(found).decode())
