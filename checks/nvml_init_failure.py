"""The NVIDIA driver is installed, but NVML cannot connect to it.

After an update of the driver package, the loaded kernel module and the user libraries differ until
the machine restarts. A container can lose its device nodes while it runs. A kernel update can leave
the machine without a module. No CUDA program can start then.

Symptoms: ``nvidia-smi`` prints "Failed to initialize NVML: Driver/library version mismatch" or
"Unknown Error", and torch prints "No CUDA GPUs are available".

To fix it, restart the machine or the container, or load the kernel module with ``modprobe nvidia``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.evidence.gpus import Nvml
from ddoctor.evidence.host import Kernel
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("cuda-driver-or-arch-mismatch", "dead-rank", "first-failure-masked", "script-error")
OF_MACHINE = True

SOURCE = "NVML API reference, nvmlReturn_t"


def failed(nvml: Nvml, kernel: Kernel | None) -> Iterator[Finding]:
    # Images and laptops may have the library without any GPU. A version mismatch proves that a
    # kernel module answered.
    loaded = nvml.module_version or nvml.error == "LIB_RM_VERSION_MISMATCH"
    if nvml.state != "failed" or not (loaded or nvml.pci_gpus or nvml.device_nodes):
        return
    container = kernel.container if kernel is not None else ""
    because = f"NVML does not initialise: {nvml.error}"
    if nvml.error == "LIB_RM_VERSION_MISMATCH":
        because += (
            f"; the library belongs to driver {nvml.library_version or '(unknown version)'}, "
            f"the loaded kernel module to {nvml.module_version or 'an earlier version'}"
        )
    elif nvml.error == "DRIVER_NOT_LOADED":
        because += f", with {len(nvml.pci_gpus)} NVIDIA GPUs on the PCI bus"
    withheld = bool(container) and not nvml.device_nodes
    if withheld:
        because += ", and this container has no GPU device nodes, which may be intended"
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
            summary="start the container with NVML (the driver capability utility)",
            paste="docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …",
        )
    else:
        fix = Fix(
            summary="find the library, and update the loader cache",
            paste="find / -name 'libnvidia-ml.so*' 2>/dev/null\nsudo ldconfig",
            caution="if the file does not exist, reinstall the user libraries of the driver",
        )
    seen = nvml.device_nodes[0] if nvml.device_nodes else f"kernel module {nvml.module_version}"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=f"the kernel driver is loaded ({seen}), but libnvidia-ml.so.1 cannot be loaded",
        fixes=(fix,),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("nvml"):
        lost = "unknown error" in event.text.lower()
        if "silent" in event.values:
            because = "the kernel's module is not loaded, or does not answer"
            yield log_events.finding([event], because, _LOAD)
            return
        yield log_events.finding(
            [event],
            "a container has lost its GPU devices, as after `systemctl daemon-reload` on its host"
            if lost
            else "the kernel's module and NVIDIA's libraries have different versions",
            Fix(
                summary="restart the container with its devices named",
                paste="docker run --gpus all --device=/dev/nvidiactl --device=/dev/nvidia0 …",
            )
            if lost
            else Fix(summary="restart the machine, or reload the modules", paste="sudo reboot"),
        )


_LOAD = Fix(
    summary="load the kernel module, or show why it does not load",
    paste="sudo modprobe nvidia || sudo dmesg | grep -iE 'nvidia|nvrm' | tail -n 20",
    caution="after a kernel update, rebuild the module first (dkms autoinstall)",
)


def _fixes(nvml: Nvml, container: str) -> Iterator[Fix]:
    if nvml.error == "LIB_RM_VERSION_MISMATCH":
        yield Fix(
            summary="restart the machine, to load the new kernel module",
            paste="sudo reboot",
            caution="ends all processes on the machine; from a container, restart its host",
        )
        yield Fix(
            summary="or reload the module without a restart, while no process uses a GPU",
            paste=(
                "sudo systemctl stop nvidia-persistenced nvidia-fabricmanager nvidia-dcgm\n"
                "sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia\n"
                "sudo modprobe nvidia && sudo modprobe nvidia_uvm"
            ),
            caution="rmmod fails while a process uses a GPU: sudo fuser -v /dev/nvidia*",
        )
    elif container and not nvml.device_nodes:
        yield Fix(
            summary="start the container with the GPUs",
            paste="docker run --gpus all …",
            caution="needs the NVIDIA Container Toolkit on the host",
        )
    elif container:
        yield Fix(
            summary="restart the container: it has lost its GPU device nodes",
            paste=(
                "# on the host, once: prevents the same loss at `systemctl daemon-reload`\n"
                "sudo nvidia-ctk system create-dev-char-symlinks --create-all\n"
                "docker restart CONTAINER"
            ),
            caution="ends all processes in the container",
        )
    elif nvml.error == "DRIVER_NOT_LOADED":
        yield _LOAD
    else:
        yield Fix(
            summary="show the messages of the kernel module",
            paste="sudo dmesg | grep -iE 'nvidia|nvrm' | tail -n 20\nls -l /dev/nvidia*",
        )
