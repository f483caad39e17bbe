"""The installed torch build does not match the CUDA driver or the GPUs.

A build for a newer CUDA than the driver supports fails with "The NVIDIA driver on your system is
too old". A build without code for the GPU's architecture fails with "no kernel image is available
for execution on the device". A CPU build leaves the GPUs idle, often after pip replaced the right
build.

Symptoms: ``nvidia-smi`` shows the newest CUDA version that the driver supports. ``python -c "import
torch; print(torch.version.cuda, torch.cuda.get_arch_list())"`` shows what torch was built for.
Within one major CUDA release an older driver is enough (minor version compatibility). Code for
sm_80 runs on compute capability 8.6, but not on 9.0.

To fix it, install the torch build for this driver, or update the driver.
"""

# Above 150 lines: software, GPUs and logs show it, each with its own fix.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddoctor.analysis import log_events, parsing
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.known_software import CudaBuilds
from ddoctor.evidence.log import Log
from ddoctor.evidence.software import Software, Torch
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def built_without_cuda(software: Software, gpus: Gpus, known: CudaBuilds) -> Iterator[Finding]:
    torch = software.torch
    if torch is None or torch.cuda is not None or torch.hip or not gpus.gpus:
        return
    yield _finding(
        f"torch {torch.version} was built without CUDA, so it can use none of the "
        f"{len(gpus.gpus)} GPUs of this host ({gpus.gpus[0].name})",
        Observation(name="torch.version.cuda", value="None"),
        _reinstall(gpus, known),
    )


def driver_too_old(software: Software, gpus: Gpus, known: CudaBuilds) -> Iterator[Finding]:
    torch = software.torch
    if torch is None or not torch.cuda or not gpus.gpus:
        return
    built_for = parsing.major(torch.cuda)
    major = _driver_major(gpus, known)
    if built_for is None or major is None or major >= built_for:
        return
    needed = known.minimum_driver(built_for)
    runs = "CUDA " + (".".join(map(str, gpus.cuda)) if gpus.cuda else f"{major}.x")
    drivers = f"driver {needed.minimum_driver} or newer" if needed else "a newer driver"
    yield _finding(
        f"torch {torch.version} was built for CUDA {torch.cuda}, which needs {drivers}, but "
        f"driver {gpus.driver} supports at most {runs}",
        Observation(
            name="driver",
            value=gpus.driver,
            expected=f">= {needed.minimum_driver}" if needed else "",
            source=needed.source if needed else "",
        ),
        (
            *_reinstall(gpus, known),
            Fix(
                summary=f"or ask the administrator to install {drivers}",
                paste="nvidia-smi --query-gpu=driver_version --format=csv,noheader",
                caution="drain and reboot the node; this command then shows the version",
            ),
        ),
    )


def no_code_for_gpu(software: Software, gpus: Gpus, known: CudaBuilds) -> Iterator[Finding]:
    torch = software.torch
    if torch is None or not torch.cuda or not torch.architectures:
        return
    lacking = [gpu for gpu in gpus.gpus if not _has_code(torch, gpu)]
    if not lacking:
        return
    capabilities = sorted({".".join(map(str, gpu.capability or ())) for gpu in lacking})
    yield _finding(
        f"torch {torch.version} has code for {', '.join(torch.architectures)}, but "
        f"{lacking[0].name} has compute capability {', '.join(capabilities)}",
        Observation(
            name="torch.cuda.get_arch_list()",
            value=" ".join(torch.architectures),
            expected=" or ".join(f"sm_{one.replace('.', '')}" for one in capabilities),
            source="CUDA C++ Programming Guide, Binary Compatibility and PTX Compatibility",
        ),
        _reinstall(gpus, known),
        Where(devices=tuple(gpu.device for gpu in lacking)),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("driver-too-old", "no-kernel-image"):
        old = event.pattern == "driver-too-old"
        yield log_events.finding(
            [event],
            "the driver is older than the CUDA of this torch"
            if old
            else "this torch has no code for the GPU",
            Fix(
                summary="update the driver, or install a torch for the CUDA that it supports"
                if old
                else "install a torch with code for this GPU",
                paste="nvidia-smi | head -4; python -m torch.utils.collect_env",
            ),
        )
    elif event := log.first("no-cuda-build"):
        yield log_events.finding(
            [event],
            "this torch was built without CUDA",
            Fix(
                summary="install a torch for the CUDA of the driver",
                paste="nvidia-smi | head -4; python -m torch.utils.collect_env",
                caution="pip may have replaced the right one while it installed another package",
            ),
        )


def _finding(
    because: str, row: Observation, fixes: Iterable[Fix], where: Where | None = None
) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=because,
        evidence=(row,),
        where=where or Where(),
        fixes=tuple(fixes),
    )


def _has_code(torch: Torch, gpu: Gpu) -> bool:
    if gpu.capability is None:
        return True
    for architecture in torch.architectures:
        match = re.fullmatch(r"(sm|compute)_(\d{1,9})(\d)([af]?)", architecture)
        if match is None:
            return True  # unknown format: no finding
        kind, capability, specific = match[1], (int(match[2]), int(match[3])), match[4]
        if capability == gpu.capability:
            return True
        older = capability <= gpu.capability and not specific
        if older and (kind == "compute" or capability[0] == gpu.capability[0]):
            return True
    return False


def _reinstall(gpus: Gpus, known: CudaBuilds) -> Iterator[Fix]:
    major = _driver_major(gpus, known)
    capabilities = [gpu.capability for gpu in gpus.gpus if gpu.capability is not None]
    build = known.build_for(major or 0, max(capabilities, default=None))
    if build is None:
        return
    pinned = f"torch=={build.torch}" if build.torch else "torch"
    yield Fix(
        summary=f"install a torch build for driver {gpus.driver} and these GPUs",
        paste=(
            "pip uninstall -y torch\n"
            f"pip install {pinned} --index-url https://download.pytorch.org/whl/{build.tag}"
        ),
        caution="packages with compiled extensions (flash-attn, apex, …) must be rebuilt",
    )


def _driver_major(gpus: Gpus, known: CudaBuilds) -> int | None:
    """The newest major CUDA release that the driver reports, or that its version supports."""
    return gpus.cuda[0] if gpus.cuda is not None else known.newest_major(gpus.driver)
