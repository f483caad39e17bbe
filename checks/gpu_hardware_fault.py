"""A GPU, its memory, its slot or its power supply is faulty.

The GPU has fallen off the bus, has uncorrectable memory errors, or floods its PCIe link with
errors. A run on it fails with "ECC error" or "CUDA error: unspecified launch failure", or hangs in
the next collective. The other ranks then report a timeout that does not mention this GPU.

Symptoms: ``nvidia-smi -q -d ECC,ROW_REMAPPER`` and ``dmesg | grep -E 'Xid|AER'`` show the errors.
Xid codes of application faults (13, 31, 43, 45) are not hardware faults.

To fix it, reset the GPU or restart the node, and replace the GPU if the errors return. Run without
this GPU until then.
"""

# Above 150 lines: NVML, the kernel log and PCIe errors each add signs to one finding per GPU.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddoctor.analysis import gpu_diagnostics, kernel_messages, log_events
from ddoctor.analysis.describe import few
from ddoctor.analysis.environment_fixes import without
from ddoctor.evidence.gpus import Gpu, Gpus, KernelLog, PcieErrors, XidEvent
from ddoctor.evidence.known_hardware import KnownXids, Xid
from ddoctor.evidence.log import Log, Messages
from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "collective-slow-for-hardware",
    "gpu-p2p-broken",
    "nvlink-degraded",
    "pcie-link-degraded",
    "straggler-rank",
    "uneven-gpu-speed",
    "wrong-collective-result",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)
OF_MACHINE = True

MEMORY_ERRORS = "NVIDIA GPU memory error management, Error recovery and response flags"
CATALOGUE = "NVIDIA's Xid catalogue"

# Each error causes a replay, and NVIDIA's DCGM warns at more than 8 replays a minute
# (DCGM_LIMIT_MAX_PCIREPLAY_RATE); ten minutes at that rate are not a brief disturbance.
STORM_RATE = 8 / 60
STORM_SECONDS = 600.0


@dataclass(frozen=True)
class Sign:
    """One sign of a faulty GPU."""

    words: str
    row: Observation
    remedy: str = "reset-gpu"
    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.CERTAIN


MEANING = {
    "ecc-error": "a memory error that the GPU cannot correct, which no setting of the run causes",
    "gpu-off-the-bus": "the GPU no longer answers on its PCIe bus",
    "nvlink-error": "a transfer over NVLink failed, which the GPU cannot correct",
    "row-remap": "the GPU has a bad row of memory, and replaces it at its next reset",
}


def faulty(gpus: Gpus, kernel_log: KernelLog | None, known: KnownXids) -> Iterator[Finding]:
    visible = {gpu.bus_id for gpu in gpus.gpus}
    for gpu in gpus.gpus:
        signs = list(_own_account(gpu))
        if kernel_log is not None:
            nameless = gpu.lost and not gpu.bus_id
            xids = [
                xid
                for xid in kernel_log.xids
                if xid.bus_id == gpu.bus_id or (nameless and xid.bus_id not in visible)
            ]
            signs += [*_logged(gpu, xids, known), *_pcie(gpu, kernel_log.pcie_errors)]
        if not signs:
            continue
        strongest = max(signs, key=lambda sign: (sign.severity, sign.confidence))
        doubt = "; a driver fault looks the same: it is the GPU if the error returns after a reset"
        yield Finding(
            severity=strongest.severity,
            confidence=strongest.confidence,
            because=f"{gpu.title}: "
            + "; ".join(sign.words for sign in signs)
            + (doubt if strongest.confidence is Confidence.POSSIBLE else ""),
            evidence=tuple(sign.row for sign in signs),
            where=Where(devices=(gpu.device,)),
            fixes=tuple(_fixes(gpus, gpu, {sign.remedy for sign in signs})),
        )


def vanished(gpus: Gpus, kernel_log: KernelLog) -> Iterator[Finding]:
    """A GPU that fell off the bus and that the driver no longer lists."""
    visible = {gpu.bus_id for gpu in gpus.gpus}
    if any(not gpu.bus_id for gpu in gpus.gpus):
        return
    gone = {
        xid.bus_id for xid in kernel_log.xids if xid.code == kernel_messages.OFF_THE_BUS
    } - visible
    for bus_id in sorted(gone):
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"the kernel log reports that the GPU at {bus_id} has fallen off the bus (Xid 79), "
                f"and the driver lists {len(gpus.gpus)} GPUs without it"
            ),
            where=Where(devices=(bus_id,)),
            fixes=tuple(_fixes(gpus, None, {"restart-machine"})),
        )


def in_a_diagnostic(diagnostic: GpuDiagnostic, messages: Messages) -> Iterator[Finding]:
    """Tests of DCGM that a GPU did not pass, but for those whose words tell another cause."""
    failures = [
        one
        for one in diagnostic.failures
        if not gpu_diagnostics.of_another_cause(one, messages, "gpu-hardware-fault")
    ]
    if not failures:
        return
    tests = few([*dict.fromkeys(one.test for one in failures)])
    gpus = sorted({one.gpu for one in failures if one.gpu is not None})
    which = f"GPU {', '.join(map(str, gpus))}" if gpus else "a GPU"
    said = next((one.text for one in failures if one.text), "")
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{which} did not pass {tests} of dcgmi diag"
            + (f": {log_events.quoted(said)}" if said else "")
            + "; a process that used the GPU meanwhile may fail a test, too"
        ),
        evidence=gpu_diagnostics.failed(failures),
        where=gpu_diagnostics.where(failures),
        fixes=(_EXAMINE,),
    )


def in_a_log(
    log: Log,
    known: KnownXids,
    hosts: tuple[Gpus, ...] | None,
    kernel_logs: tuple[KernelLog, ...] | None,
) -> Iterator[Finding]:
    events = kernel_messages.not_judged(log.events, hosts or (), kernel_logs or ())
    if event := next((one for one in events if one.pattern in MEANING), None):
        yield log_events.finding([event], MEANING[event.pattern], _EXAMINE)
        return
    if event := log.first("gpu-start", "unknown-cuda-error"):
        yield log_events.finding(
            [event],
            "the driver cannot start the GPU: it is faulty, or the module does not fit it"
            if event.pattern == "gpu-start"
            else "CUDA fails without a reason, as with a faulty GPU or driver: see the kernel log",
            _EXAMINE,
            confidence=Confidence.POSSIBLE,
        )
        return
    for event in events:
        if event.pattern != "xid":
            continue
        xid = known.get(int(event.values["code"]))
        if xid is not None and xid.blames in ("board", "memory", "gpu-or-driver"):
            sure = xid.blames != "gpu-or-driver"
            yield log_events.finding(
                [event],
                f"Xid {xid.code} is {xid.title}, of the GPU at {event.values['bus']}",
                _EXAMINE,
                confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
            )
            return
    if event := log.first("inforom"):
        yield log_events.finding(
            [event],
            "the GPU's record of itself is damaged, so that its errors may go unnoticed",
            _EXAMINE,
            severity=Severity.WARNING,
            confidence=Confidence.POSSIBLE,
        )


_EXAMINE = Fix(
    summary="take the node out of service, and examine the GPU",
    paste="nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg -T | grep -E 'Xid|NVRM'; dcgmi diag -r 3",
    caution="reset the GPU or restart the node; replace the GPU if the errors return",
)


def _own_account(gpu: Gpu) -> Iterator[Sign]:
    """Signs that NVML reports."""
    if gpu.lost:
        row = Observation(name="NVML's answer", value=gpu.error, source="NVML")
        remedy = "reset-gpu" if gpu.error == "RESET_REQUIRED" else "restart-machine"
        yield Sign(f"NVML answers only {gpu.error}", row, remedy)
        return
    if gpu.remap_failed:
        row = Observation(name="row remapping failed", value=True, source=MEMORY_ERRORS)
        words = "a memory row could not be remapped: NVIDIA's criterion for replacing the GPU"
        yield Sign(words, row, "replace")
    if (action := gpu.recovery_action or "none") not in ("none", "recover_imex_domain"):
        row = Observation(name="recovery action", value=action, source=MEMORY_ERRORS)
        remedy = "restart-machine" if "reboot" in action else "reset-gpu"
        yield Sign(f"the driver requests {action.replace('_', ' ')}", row, remedy)
    if count := gpu.ecc_uncorrected_volatile:
        row = Observation(
            name="uncorrected memory errors", value=count, expected=0, source=MEMORY_ERRORS
        )
        words = f"{count} uncorrected memory errors since the driver was loaded"
        if gpu.remap_pending:
            yield Sign(f"{words}, and a row remapping is pending until a reset", row)
        else:
            yield Sign(words, row, severity=Severity.WARNING, confidence=Confidence.LIKELY)
    elif gpu.remap_pending:
        row = Observation(name="row remapping pending", value=True, source=MEMORY_ERRORS)
        words = "a row remapping is pending until the next reset; it does not affect runs"
        yield Sign(words, row, severity=Severity.NOTE)


def _logged(gpu: Gpu, events: Sequence[XidEvent], known: KnownXids) -> Iterator[Sign]:
    """Xid errors of the GPU in the kernel log, each code once."""
    for code in dict.fromkeys(event.code for event in events):
        xid = known.get(code)
        if xid is None or xid.blames not in ("board", "memory", "gpu-or-driver"):
            continue
        ages = [event.age for event in events if event.code == code and event.age is not None]
        last = f", last {min(ages) / 3600:.1f} h ago" if ages else ""
        count = sum(event.code == code for event in events)
        yield Sign(
            f"Xid {code} ({xid.title}) {count}× in the kernel log{last}",
            Observation(name=f"Xid {code}", value=count, unit="events", source=CATALOGUE),
            xid.remedy,
            _weight(gpu, xid),
            Confidence.POSSIBLE if xid.blames == "gpu-or-driver" else Confidence.LIKELY,
        )


def _weight(gpu: Gpu, xid: Xid) -> Severity:
    """A fault that a reset fixes is over if the driver requests none, or its counters are zero."""
    fixed = gpu.recovery_action == "none" and xid.remedy in ("reset-gpu", "restart-run")
    counters_reset = gpu.ecc_uncorrected_volatile == 0 and not gpu.remap_pending
    over = fixed or (xid.blames == "memory" and counters_reset) or xid.remedy == "none"
    return Severity.NOTE if over else Severity.WARNING


def _pcie(gpu: Gpu, errors: Sequence[PcieErrors]) -> Iterator[Sign]:
    """Errors that the GPU or the PCIe port directly above it has reported."""
    link = {gpu.bus_id, *(gpu.pcie.upstream[-1:] if gpu.pcie is not None else ())}
    for row in errors:
        storm = row.count / max(row.span or 0.0, STORM_SECONDS) >= STORM_RATE
        if row.bus_id in link and (storm or row.severity == "fatal"):
            yield Sign(
                f"{row.count} {row.severity} PCIe errors of {row.bus_id} in the kernel log",
                Observation(name=f"{row.severity} PCIe errors", value=row.count, expected=0),
                "reseat",
                Severity.WARNING,
                Confidence.LIKELY,
            )


def _fixes(gpus: Gpus, gpu: Gpu | None, remedies: set[str]) -> Iterator[Fix]:
    if "restart-machine" in remedies:
        yield Fix(
            summary="take the node out of service and restart it",
            paste="sudo reboot",
            caution="ends all of its processes; if the error returns, reseat or replace the GPU",
        )
    elif gpu is not None and not remedies & {"replace", "reseat", "check-power"}:
        yield Fix(
            summary="reset the GPU while no process uses it",
            paste=f"sudo nvidia-smi --gpu-reset -i {gpu.index}",
            caution="fails while a process uses the GPU; GPUs connected by NVLink may need a "
            "common reset (leave out -i)",
        )
    elif gpu is not None:
        yield Fix(
            summary="have the GPU inspected (seat, riser, power cables) or replaced",
            paste=f"nvidia-smi -i {gpu.index} -q > gpu-{gpu.index}.txt; sudo nvidia-bug-report.sh",
            caution="NVIDIA or the vendor asks for this report",
        )
    if gpu is not None and len(gpus.answering) > 1:
        yield without(
            gpus,
            gpu,
            summary="run without this GPU until then",
            caution="start one rank per remaining GPU; a lost GPU can break CUDA for all GPUs",
        )
