"""NVLinks are down, so a GPU has less bandwidth to its peers than equal GPUs have.

A collective is as fast as its slowest pair of GPUs. NCCL builds its rings and trees from the links
that it finds. A GPU with links down therefore slows down every rank, or sends its traffic over
PCIe.

Symptoms: ``nvidia-smi nvlink --status`` lists fewer active links for one GPU than for the others,
or ``nvidia-smi nvlink -e`` counts recovery errors. A PCIe card without a bridge has no links, which
is not a fault.

To fix it, reset the GPUs, then reseat the bridge or replace the board. Run without this GPU until
then.
"""

# Above 150 lines: states, counters, and the kernel's log each tell it.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import gpu_diagnostics, kernel_messages, log_events
from ddoctor.analysis.describe import few
from ddoctor.analysis.environment_fixes import without
from ddoctor.evidence.gpus import Gpu, Gpus, KernelLog
from ddoctor.evidence.known_hardware import KnownXids
from ddoctor.evidence.log import Log, Messages
from ddoctor.evidence.printed import GpuDiagnostic, NvLinkErrors
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "collective-slow-for-hardware",
    "gpu-p2p-broken",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)
OF_MACHINE = True

MOST_SHOWN = 8
"""Links whose counters are listed."""


def down(gpus: Gpus) -> Iterator[Finding]:
    for gpu in gpus.answering:
        # With MIG, a GPU has no NVLinks, and the driver lists them as inactive.
        if gpu.nvlinks is None or gpu.mig:
            continue
        alike = _alike(gpus, gpu)
        usual = max(map(_active, alike), default=0)
        lost = [link.index for link in gpu.nvlinks if not link.active]
        # A link to a switch is meant to be up, even where all GPUs have lost as many.
        to_switch = any(not link.active and link.remote == "switch" for link in gpu.nvlinks)
        wanted = max(usual, len(gpu.nvlinks)) if to_switch else usual
        if _active(gpu) >= wanted or (_active(gpu) == 0 and _may_lack_a_bridge(alike)):
            continue
        names = f" (down: {', '.join(map(str, lost))})" if lost else ""
        others = f"equal GPUs have {usual}" if usual == wanted else f"of {wanted}"
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN if usual == wanted else Confidence.LIKELY,
            because=f"{gpu.title} has {_active(gpu)} active NVLinks, {others}{names}",
            evidence=(
                Observation(
                    name="active NVLinks",
                    value=_active(gpu),
                    expected=wanted,
                    source="equal GPUs of this host" if usual == wanted else "links to switches",
                ),
            ),
            where=Where(devices=(gpu.device,)),
            fixes=_fixes(gpus, gpu),
        )


def errors(nvlink_errors: NvLinkErrors) -> Iterator[Finding]:
    """Counters that are not zero.

    DCGM calls one recovery a failure ("should be 0"), and CRC errors one at 100 per second and more
    (dcgm_errors.h, DCGM_LIMIT_MAX_NVLINK_CRC_ERROR). A total does not say when they were.
    """
    trained = [one for one in nvlink_errors.links if one.recoveries]
    repaired = [one for one in nvlink_errors.links if one.repaired]
    found = trained or repaired
    if not found:
        return
    counts = [one.recoveries if trained else one.repaired for one in found]
    kind = "recovery errors" if trained else "replays and CRC errors"
    shown = few([f"{one.name} ({count})" for one, count in zip(found, counts, strict=True)])
    yield Finding(
        severity=Severity.WARNING if trained else Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=f"{kind} of {shown} since the driver was loaded; "
        + ("a sound link has none" if trained else "a few are usual, as the link sends again")
        + ", and the counters do not say when they were",
        evidence=tuple(
            Observation(
                name=f"{kind} of {one.name}",
                value=count,
                expected=0,
                source="NVIDIA DCGM, dcgm_errors.h",
            )
            for one, count in [*zip(found, counts, strict=True)][:MOST_SHOWN]
        ),
        where=Where(devices=tuple(sorted({f"cuda:{one.gpu}" for one in found}))),
        fixes=(_SHOW,),
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


def in_a_diagnostic(diagnostic: GpuDiagnostic, messages: Messages) -> Iterator[Finding]:
    """Tests of DCGM that fail with words of this cause."""
    yield from gpu_diagnostics.told(diagnostic, messages, "nvlink-degraded")


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


def _alike(gpus: Gpus, gpu: Gpu) -> Sequence[Gpu]:
    """Equal GPUs whose links were seen; dcgmi names no model: those with as many links."""
    if gpu.name:
        return [one for one in gpus.alike(gpu) if one.nvlinks]
    number = len(gpu.nvlinks or ())
    others = [one for one in gpus.answering if one.index != gpu.index and not one.name]
    return [one for one in others if one.nvlinks and len(one.nvlinks) == number]


def _may_lack_a_bridge(alike: Sequence[Gpu]) -> bool:
    """Whether a card without links may lack a bridge; every GPU has links to the switches.

    Bridges connect two or four cards. Where no other end is known, an odd number shows switches.
    """
    linked = [one for one in alike if _active(one)]
    ends = {link.remote for one in linked for link in one.nvlinks or () if link.active}
    if ends <= {""}:
        return len(linked) % 2 == 0 or len(linked) == 1
    return bool(ends - {"", "switch"})


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
