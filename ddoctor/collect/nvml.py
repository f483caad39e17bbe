"""NVML: whether it answers, and queries that lose nothing else when one is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ddoctor.collect import CannotSee
from ddoctor.collect.files import text
from ddoctor.evidence.gpus import Nvml
from ddoctor.evidence.section import Unseen

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"
"""First byte of the PCI class of VGA and 3D controllers."""


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
            if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
                self.lost = error_name(error.value)
            elif error.value not in _unsupported():
                what = f"GPU {self.index}: {function.removeprefix('nvmlDeviceGet')}"
                self.unseen.append(Unseen(what=what, why=error_name(error.value)))
        except pynvml.NVMLLibraryMismatchError:
            pass  # a driver older than this question
        return None


@contextmanager
def session() -> Iterator[None]:
    """NVML between its start and its end.

    Raises:
        CannotSee: there is no NVIDIA driver, or it does not answer.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise CannotSee(_why_not(error.value)) from None
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def error_name(code: int) -> str:
    """NVML's name of an error code, say GPU_IS_LOST."""
    import pynvml

    names = (name for name in vars(pynvml) if name.startswith("NVML_ERROR_"))
    known = (name for name in names if getattr(pynvml, name) == code)
    return next(known, f"error {code}").removeprefix("NVML_ERROR_")


def bus_id_of(pci: Any) -> str:
    """A bus id in the kernel's form: NVML gives the domain eight digits, the kernel four."""
    if pci is None:
        return ""
    told: str = pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId
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
        module_version=_module_version(root),
        library_version=_library_version(root),
        device_nodes=tuple(sorted(str(node) for node in root.glob("dev/nvidia*"))),
        pci_gpus=_pci_gpus(root),
    )


def _unsupported() -> tuple[int, ...]:
    import pynvml

    return (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
    )


def _why_not(code: int) -> str:
    import pynvml

    if code != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return f"NVML does not answer: {error_name(code)}"
    if Path("/dev/kfd").exists():
        return "no NVIDIA driver on this machine, and AMD GPUs (/dev/kfd) are not supported yet"
    return "no NVIDIA driver on this machine"


def _module_version(root: Path) -> str:
    told = f"{text(root / 'proc/driver/nvidia/version')}\n"
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", told)
    return found.group(1) if found else ""


def _library_version(root: Path) -> str:
    """The version in the name of the loaded file, which is known even if NVML fails to start."""
    for line in (root / "proc/self/maps").read_text().splitlines():
        found = re.search(r"/libnvidia-ml\.so\.(\d+\.[\d.]+)$", line)
        if found:
            return found.group(1)
    return ""


def _pci_gpus(root: Path) -> tuple[str, ...]:
    return tuple(
        sorted(
            device.name
            for device in root.glob("sys/bus/pci/devices/*")
            if text(device / "vendor") == NVIDIA_VENDOR
            and text(device / "class").startswith(DISPLAY_CLASS)
        )
    )


COLLECTORS = (nvml,)
