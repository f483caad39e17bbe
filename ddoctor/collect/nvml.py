"""NVML: whether it answers, and queries that lose nothing else when one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ddoctor.collect import CannotSee, pci
from ddoctor.evidence.gpus import Nvml
from ddoctor.evidence.section import Unseen
from ddoctor.proc.files import search

UNSUPPORTED = {"NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "NOT_FOUND", "NO_DATA"}
"""Names of errors by which a device says that it does not have a quantity."""


class NvmlDevice:
    """One GPU, queried field by field. None: the device does not support the query."""

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.lost = ""
        """NVML's name of the error by which the device was lost."""
        self.unseen: list[Unseen] = []

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of pynvml on this device."""
        import pynvml

        try:
            return getattr(pynvml, function)(self.handle, *arguments)
        except pynvml.NVMLError as error:
            name = error_name(error.value)
            if name in ("GPU_IS_LOST", "RESET_REQUIRED"):
                self.lost = name
            elif name not in UNSUPPORTED:
                what = f"GPU {self.index}: {function.removeprefix('nvmlDeviceGet')}"
                self.unseen.append(Unseen(what=what, why=name))
        except pynvml.NVMLLibraryMismatchError:
            pass  # a driver older than this question
        return None


@contextmanager
def session() -> Iterator[None]:
    """NVML between its start and its end; `CannotSee` without a driver that answers."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise CannotSee(_why_not(error.value)) from None
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


@cache
def error_name(code: int) -> str:
    """NVML's name of an error code, say GPU_IS_LOST."""
    import pynvml

    names = (name for name in vars(pynvml) if name.startswith("NVML_ERROR_"))
    known = (name for name in names if getattr(pynvml, name) == code)
    return next(known, f"error {code}").removeprefix("NVML_ERROR_")


def bus_id_of(info: Any) -> str:
    """A bus id in the kernel's form: NVML gives the domain eight digits, the kernel four."""
    if info is None:
        return ""
    told: str = info.busId.decode() if isinstance(info.busId, bytes) else info.busId
    return told.lower()[-len("0000:1b:00.0") :]


def nvml(root: Path = Path("/")) -> Nvml:
    """Whether NVML answers, and the state of driver, library and device nodes."""
    import pynvml

    state: Literal["ok", "no-library", "failed"] = "ok"
    error = ""
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as failure:
        missing = failure.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        state = "no-library" if missing else "failed"
        error = error_name(failure.value)
    return Nvml(
        state=state,
        error=error,
        module_version=search(
            r"Kernel Module.*?\s(\d+(?:\.\d+)+)(?:\s|$)", root / "proc/driver/nvidia/version"
        ),
        # The name of the loaded file is known even if NVML fails to start.
        library_version=search(r"/libnvidia-ml\.so\.(\d+\.[\d.]+)$", root / "proc/self/maps"),
        device_nodes=tuple(sorted(str(node) for node in root.glob("dev/nvidia*"))),
        pci_gpus=tuple(device.name for device in pci.gpus(root, (pci.NVIDIA,))),
    )


def _why_not(code: int) -> str:
    import pynvml

    if code != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return f"NVML does not answer: {error_name(code)}"
    if Path("/dev/kfd").exists():
        return "no NVIDIA driver on this machine, and AMD GPUs (/dev/kfd) are not supported yet"
    return "no NVIDIA driver on this machine"


COLLECTORS = (nvml,)
