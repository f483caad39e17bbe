"""GPUs are not registered with the NVSwitch fabric, or the fabric reports a fault.

On machines with NVSwitch, the fabric manager must register every GPU before CUDA works. The service
may not run, may have another version than the driver, or may have restarted while GPUs were in use.
CUDA then fails with error 802 "system not yet initialized", or NCCL cannot bind NVLS memory.

Symptoms: ``nvidia-smi -q | grep -A 2 Fabric`` does not show "Completed / Success".

To fix it, run the fabric manager with the same version as the driver, then reset the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import gpu_diagnostics, log_events
from ddoctor.analysis.environment_fixes import export
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.log import Log, Messages
from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "collective-slow-for-hardware",
    "gpu-p2p-broken",
    "nvlink-degraded",
    "dead-rank",
    "first-failure-masked",
    "script-error",
    "cuda-driver-or-arch-mismatch",
)
OF_MACHINE = True

SOURCE = "NVML API reference, Fabric definitions"


def unregistered(gpus: Gpus) -> Iterator[Finding]:
    if len(gpus.gpus) < 2:
        return  # a single GPU, for example in a virtual machine, works without the fabric
    waiting = [gpu for gpu in gpus.answering if gpu.fabric_state in ("not_started", "in_progress")]
    if not waiting:
        return
    under_way = all(gpu.fabric_state == "in_progress" for gpu in waiting)
    state = "in progress" if under_way else "not started"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if under_way else Confidence.CERTAIN,
        because=(
            f"the fabric registration of {len(waiting)} of {len(gpus.gpus)} GPUs is {state}"
            + ("; after a boot this can be normal: check again in a minute" if under_way else "")
        ),
        evidence=(
            Observation(name="fabric state", value=state, expected="completed", source=SOURCE),
        ),
        where=Where(devices=tuple(gpu.device for gpu in waiting)),
        fixes=_fixes(gpus),
    )


def in_trouble(gpus: Gpus) -> Iterator[Finding]:
    def trouble(gpu: Gpu) -> str:
        words = (gpu.fabric_status, *gpu.fabric_trouble)
        return ", ".join(word.lower().replace("_", " ") for word in words if word)

    bad = [gpu for gpu in gpus.answering if gpu.fabric_state == "completed" and trouble(gpu)]
    for what in dict.fromkeys(map(trouble, bad)):
        affected = [gpu for gpu in bad if trouble(gpu) == what]
        yield Finding(
            severity=Severity.ERROR
            if any(gpu.fabric_status for gpu in affected)
            else Severity.WARNING,
            confidence=Confidence.CERTAIN,
            because=f"the fabric reports {what} for {', '.join(gpu.title for gpu in affected)}",
            evidence=(
                Observation(name="fabric fault", value=what, expected="none", source=SOURCE),
            ),
            where=Where(devices=tuple(gpu.device for gpu in affected)),
            fixes=_fixes(gpus),
        )


def in_a_diagnostic(diagnostic: GpuDiagnostic, messages: Messages) -> Iterator[Finding]:
    """Tests of DCGM that fail with words of this cause."""
    yield from gpu_diagnostics.told(diagnostic, messages, "nvswitch-fabric-fault")


def in_a_log(log: Log) -> Iterator[Finding]:
    events = log.of("fabric-version") or log.of("fabric-not-ready", "nvls-bind")
    if not events:
        return
    driver, manager = (events[0].values.get(name, "") for name in ("driver", "manager"))
    why = "CUDA waits for the NVSwitches, which the fabric manager sets up"
    if driver:
        why = f"the fabric manager {manager} does not fit the driver {driver}"
    version = driver or "VERSION"
    yield log_events.finding(
        events,
        why,
        Fix(
            summary="install the fabric manager of the driver's version, and start it",
            paste=f"sudo apt-get install nvidia-fabricmanager-{version.split('.')[0]}={version}-1\n"
            "sudo systemctl enable --now nvidia-fabricmanager",
        ),
    )


def _fixes(gpus: Gpus) -> tuple[Fix, ...]:
    return (
        Fix(
            summary=f"run the fabric manager with the driver's version, {gpus.driver}",
            paste=(
                f"nv-fabricmanager --version    # must say {gpus.driver}\n"
                "sudo systemctl enable --now nvidia-fabricmanager\n"
                "sudo journalctl -u nvidia-fabricmanager -n 30"
            ),
            caution="on the host, not in a container; if GPUs were in use during the restart, "
            "reset them (sudo nvidia-smi --gpu-reset) or reboot",
        ),
        export(
            "NCCL_NVLS_ENABLE=0",
            "or switch off NVLS as a workaround, if only NVLS fails",
            "lowers all-reduce bandwidth; does not help against CUDA error 802",
        ),
    )
