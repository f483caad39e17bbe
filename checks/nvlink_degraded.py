"""NVLinks are down, so a GPU has less bandwidth to its peers than equal GPUs have.

A collective is as fast as its slowest pair of GPUs. NCCL builds its rings and trees from the links
that it finds. A GPU with links down therefore slows down every rank, or sends its traffic over
PCIe.

Symptoms: ``nvidia-smi nvlink --status`` lists fewer active links for one GPU than for the others. A
PCIe card without a bridge has no links, which is not a fault.

To fix it, reset the GPUs, then reseat the bridge or replace the board. Run without this GPU until
then.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import kernel_messages, log_events
from ddoctor.analysis.environment_fixes import without
from ddoctor.evidence.gpus import Gpu, Gpus, KernelLog
from ddoctor.evidence.known_hardware import KnownXids
from ddoctor.evidence.log import Log
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "collective-slow-for-hardware",
    "gpu-p2p-broken",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)
OF_MACHINE = True


def down(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        alike = [other for other in gpus.alike(gpu) if other.nvlinks]
        usual = max(map(_active, alike), default=0)
        # A card without links may lack a bridge, but every GPU has links to the switches.
        bridged = any(
            link.remote not in ("", "switch") for one in alike for link in one.nvlinks or ()
        )
        if _active(gpu) >= usual or (_active(gpu) == 0 and bridged):
            continue
        lost = [link.index for link in gpu.nvlinks or () if not link.active]
        names = f" (down: {', '.join(map(str, lost))})" if lost else ""
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            because=(
                f"{gpu.title} has {_active(gpu)} active NVLinks, equal GPUs have {usual}{names}"
            ),
            evidence=(
                Observation(
                    name="active NVLinks",
                    value=_active(gpu),
                    expected=usual,
                    source="equal GPUs of this host",
                ),
            ),
            where=Where(devices=(gpu.device,)),
            fixes=_fixes(gpus, gpu),
        )


def logged(gpus: Gpus, kernel_log: KernelLog, known: KnownXids) -> Iterator[Finding]:
    """NVLink errors; skipped if a GPU fell off the bus, since its peers then log them too."""
    codes = {xid.code: xid for xid in known.xids if xid.blames == "nvlink"}
    if any(xid.code == 79 for xid in kernel_log.xids):
        return
    for gpu in gpus.answering:
        # The driver keeps its request for a reset until the reset.
        was_reset = gpu.recovery_action == "none"
        events = [xid for xid in kernel_log.xids if xid.bus_id == gpu.bus_id and xid.code in codes]
        if not events:
            continue
        last = events[-1]
        ago = f", last {last.age / 3600:.1f} h ago" if last.age is not None else ""
        yield Finding(
            severity=Severity.NOTE if was_reset else Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"the kernel log has {len(events)} NVLink errors of {gpu.title}{ago} "
                f"(Xid {last.code}, {codes[last.code].title}); "
                "the cause may be at either end of the link"
            ),
            evidence=(
                Observation(
                    name=f"Xid {last.code}",
                    value=len(events),
                    unit="events",
                    source="NVIDIA's Xid catalogue",
                ),
            ),
            where=Where(devices=(gpu.device,)),
            fixes=_fixes(gpus, gpu),
        )


def in_a_log(
    log: Log,
    known: KnownXids,
    hosts: tuple[Gpus, ...] | None,
    kernel_logs: tuple[KernelLog, ...] | None,
) -> Iterator[Finding]:
    for event in kernel_messages.not_judged(log.of("xid"), hosts or (), kernel_logs or ()):
        xid = known.get(int(event.values["code"]))
        if xid is not None and xid.blames == "nvlink":
            yield log_events.finding(
                [event],
                f"Xid {xid.code} is {xid.title}, of the GPU at {event.values['bus']}",
                _SHOW,
            )
            return


_SHOW = Fix(
    summary="show the links and their errors, then reset the GPU",
    paste="nvidia-smi nvlink --status; nvidia-smi nvlink -e",
    caution="take the node out of service if the errors return",
)


def _active(gpu: Gpu) -> int:
    return sum(link.active for link in gpu.nvlinks or ())


def _fixes(gpus: Gpus, gpu: Gpu) -> tuple[Fix, ...]:
    return (
        Fix(
            summary="check the links, then reset the GPUs while no process uses them",
            paste=(
                f"nvidia-smi nvlink --status -i {gpu.index}\n"
                f"nvidia-smi nvlink --errorcounters -i {gpu.index}\n"
                "sudo nvidia-smi --gpu-reset"
            ),
            caution="if the links stay down, reboot, then reseat the bridge or have the board "
            "replaced",
        ),
        without(gpus, gpu, summary="run without this GPU until then"),
    )
