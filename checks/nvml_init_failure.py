"""The NVIDIA driver is there, but its management library cannot talk to it.

After an update of the driver package the loaded kernel module and the user libraries differ until
the machine is restarted; a container can lose its device nodes while it runs; a kernel update can
leave the machine without a module at all. Nothing that uses CUDA can start.

Seen from outside: ``nvidia-smi`` says "Failed to initialize NVML: Driver/library version mismatch"
or "Unknown Error", and torch says "No CUDA GPUs are available".
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.gpus import Nvml
from ddoctor.evidence.host import Kernel
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("cuda-driver-or-arch-mismatch",)

SOURCE = "NVML API reference, nvmlReturn_t"


def failed(nvml: Nvml, kernel: Kernel | None) -> Iterator[Finding]:
    # The library alone, as images and laptops have it, has no GPU to talk to; a module of another
    # version has answered it.
    loaded = nvml.module_version or nvml.error == "LIB_RM_VERSION_MISMATCH"
    if nvml.state != "failed" or not (loaded or nvml.pci_gpus or nvml.device_nodes):
        return
    container = kernel.container if kernel is not None else ""
    because = f"NVML does not start: {nvml.error}"
    if nvml.error == "LIB_RM_VERSION_MISMATCH":
        because += (
            f"; the library is of driver {nvml.library_version or 'another version'}, "
            f"the loaded kernel module of {nvml.module_version or 'an earlier one'}"
        )
    elif nvml.error == "DRIVER_NOT_LOADED":
        because += f", with {len(nvml.pci_gpus)} NVIDIA GPUs on the PCI bus"
    withheld = bool(container) and not nvml.device_nodes
    if withheld:
        because += ", and this container has no GPU device nodes: was it meant to have any?"
    yield Finding(
        severity=Severity.WARNING if withheld else Severity.ERROR,
        confidence=Confidence.POSSIBLE if withheld else Confidence.CERTAIN,
        because=because,
        evidence=(
            Observation(name="nvmlInit", value=nvml.error, expected="SUCCESS", source=SOURCE),
        ),
        fixes=tuple(_fixes(nvml, container)),
    )


def library_missing(nvml: Nvml, kernel: Kernel | None) -> Iterator[Finding]:
    if nvml.state != "no-library" or not (nvml.device_nodes or nvml.module_version):
        return
    container = kernel.container if kernel is not None else ""
    if container:
        fix = Fix(
            summary="give the container the driver's management library",
            paste="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",
        )
    else:
        fix = Fix(
            summary="see where the library is, and let the loader find it",
            paste="find / -name 'libnvidia-ml.so*' 2>/dev/null\nsudo ldconfig",
            caution="where nothing is found, the driver's user part has to be installed again",
        )
    seen = nvml.device_nodes[0] if nvml.device_nodes else f"kernel module {nvml.module_version}"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"the kernel driver is there ({seen}), but libnvidia-ml.so.1 cannot be loaded",
        fixes=(fix,),
    )


def _fixes(nvml: Nvml, container: str) -> Iterator[Fix]:
    if nvml.error == "LIB_RM_VERSION_MISMATCH":
        yield Fix(
            summary="restart the machine, so that the module of the new version is loaded",
            paste="sudo reboot",
            caution="ends everything that runs on it; in a container, restart the host",
        )
        yield Fix(
            summary="or load the new module in place, when nothing uses a GPU",
            paste=(
                "sudo systemctl stop nvidia-persistenced nvidia-fabricmanager nvidia-dcgm\n"
                "sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia\n"
                "sudo modprobe nvidia && sudo modprobe nvidia_uvm"
            ),
            caution="rmmod refuses while any process holds a GPU: sudo fuser -v /dev/nvidia*",
        )
    elif container and not nvml.device_nodes:
        yield Fix(
            summary="start the container with the GPUs",
            paste="docker run --gpus all …",
            caution="needs NVIDIA's container toolkit on the host",
        )
    elif container:
        yield Fix(
            summary="restart the container: it has lost its GPU device nodes",
            paste=(
                "# on the host, once, so that `systemctl daemon-reload` does no harm again:\n"
                "sudo nvidia-ctk system create-dev-char-symlinks --create-all\n"
                "docker restart CONTAINER"
            ),
            caution="ends what runs in the container",
        )
    elif nvml.error == "DRIVER_NOT_LOADED":
        yield Fix(
            summary="load the kernel module, and see why it was not",
            paste="sudo modprobe nvidia || sudo dmesg | grep -iE 'nvidia|nvrm' | tail -n 20",
            caution="after a kernel update the module has to be built again (dkms autoinstall)",
        )
    else:
        yield Fix(
            summary="see what the kernel module says",
            paste="sudo dmesg | grep -iE 'nvidia|nvrm' | tail -n 20\nls -l /dev/nvidia*",
        )
