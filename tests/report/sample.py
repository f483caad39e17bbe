"""Reports to render: of a sick node, a sound one, two, an unfinished look. No check is asked."""

from __future__ import annotations

from dataclasses import replace

from ddoctor.evidence.host import Cpus, Memory, SharedMemory
from ddoctor.evidence.probes import Matmul, ProbeRun, ProbeRuns, RankPlace, RankRate, RankState
from ddoctor.evidence.section import Absence, Absent, Evidence
from ddoctor.models import (
    Confidence,
    Cost,
    Crashed,
    Finding,
    Fix,
    Observation,
    Report,
    Severity,
    Skipped,
    Value,
    Verdict,
    Verified,
    Where,
    World,
)
from tests.many_hosts import fleet, planted
from tests.report import training_sample
from tests.report.machines import GIB, HOSTILE, host, measured


def observation(
    name: str, value: Value, unit: str = "", expected: Value | None = None, source: str = ""
) -> Observation:
    return Observation(name=name, value=value, unit=unit, expected=expected, source=source)


HOT = Finding(
    cause="gpu-thermal-throttling",
    title="A GPU slows itself down because of heat",
    severity=Severity.ERROR,
    confidence=Confidence.CERTAIN,
    where=Where(hosts=("node-1",), ranks=(3,), devices=("cuda:3",)),
    because=(
        "GPU 3 stands at 88 °C, above its slowdown temperature of 87 °C, names hw_thermal_slowdown "
        "as the reason, and runs at 1095 of 1980 MHz, while the other seven stay below 41 °C"
    ),
    evidence=(
        observation("temperature", 88, "°C", 87, "NVML, slowdown threshold of this device"),
        observation("SM clock", 1095, "MHz", 1980, "NVML, maximum clock"),
        observation("matmul of rank 3", 405.0, "TFLOP/s", 711.6, "median of the other seven"),
        observation("throttle reasons", "hw_thermal_slowdown", "", "", "NVML"),
    ),
    cost=Cost(value=0.43, unit="share of step"),
    consequences=("uneven-gpu-speed", "collective-slow-for-hardware"),
    fixes=(
        Fix(
            summary="have the airflow of this slot checked; until then, lower the power so that "
            "the clocks hold still",
            paste="sudo nvidia-smi -i 3 -pl 500",
            caution="the limit is lost at the next reboot; the seven other GPUs will still wait",
            expected_gain="clocks that no longer swing; up to 15 % of the step",
        ),
        Fix(
            summary="leave GPU 3 out",
            paste=(
                "export CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7\n"
                "torchrun --standalone --nproc-per-node=7 train.py"
            ),
            caution="the global batch shrinks by an eighth",
            verified=Verified(before=0.912, after=0.604, unit="s/step"),
        ),
    ),
)
CAPPED = Finding(
    cause="gpu-power-capped",
    title="A GPU's power limit is below its default",
    severity=Severity.WARNING,
    confidence=Confidence.LIKELY,
    where=Where(hosts=("node-1",), ranks=(6,), devices=("cuda:6",)),
    because=(
        "GPU 6 may draw 500 W where 700 W is the default, so it lowers its clocks under load; a "
        "matmul under load would settle how much it costs"
    ),
    evidence=(observation("power limit", 500, "W", 700, "NVML, default power limit"),),
    fixes=(
        Fix(
            summary="restore the default limit",
            paste="sudo nvidia-smi -i 6 -pl 700",
            caution="somebody may have set it for the power budget of the rack",
        ),
    ),
)
MISSPELT = Finding(
    cause="environment-variable-invalid",
    title="An environment variable is misspelt, unknown or out of date",
    severity=Severity.WARNING,
    confidence=Confidence.CERTAIN,
    where=Where(hosts=("node-1",)),
    because="NCCL_SOCKET_IFNAMES=eth0 is no variable of NCCL 2.27; NCCL_SOCKET_IFNAME is",
    evidence=(
        observation(
            "NCCL_SOCKET_IFNAMES",
            "eth0",
            "",
            None,
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        ),
    ),
    fixes=(
        Fix(
            summary="rename it",
            paste='unset NCCL_SOCKET_IFNAMES\nexport NCCL_SOCKET_IFNAME="eth0"',
        ),
        Fix(
            summary="and in the pod's description",
            paste="env:\n  - name: NCCL_SOCKET_IFNAME\n    value: eth0\n",
            language="yaml",
        ),
    ),
)
DEBUG_LEFT = Finding(
    cause="debug-settings-left-on",
    title="A debug switch is still on",
    severity=Severity.NOTE,
    confidence=Confidence.CERTAIN,
    where=Where(hosts=("node-1",)),
    because="NCCL_DEBUG=INFO writes several thousand lines per start of a run of 8 ranks",
    evidence=(observation("NCCL_DEBUG", "INFO"),),
    fixes=(Fix(summary="switch it off", paste="unset NCCL_DEBUG"),),
)

SKIPPED = (
    Skipped(check="clock-skew", reason="no clock evidence: adjtimex is not permitted here"),
    Skipped(
        check="disk-full-or-slow (slow small files)",
        reason="no storage-read evidence: get it with `ddoctor doctor --probe storage_read "
        "--data FOLDER`",
    ),
    Skipped(check="pcie-acs-iommu", reason="no iommu evidence: needs root"),
    Skipped(check="gpu-hardware-fault (xid)", reason="no kernel-log evidence: needs root"),
)


def report(
    *findings: Finding,
    verdict: Verdict,
    hosts: tuple[str, ...] = ("node-1",),
    ranks: int = 8,
    backend: str = "nccl",
    skipped: tuple[Skipped, ...] = (),
    crashed: tuple[Crashed, ...] = (),
) -> Report:
    return Report(
        ddoctor="0.1.0",
        command="doctor",
        created="2026-11-20T03:04:05+00:00",
        verdict=verdict,
        world=World(hosts=hosts, ranks=ranks, backend=backend),
        findings=findings,
        skipped=skipped,
        crashed=crashed,
    )


Sample = tuple[Report, Evidence]


def sick() -> Sample:
    """A node with one hot GPU and more, everything examined."""
    evidence = Evidence((*host("node-1", sick=True), *measured("node-1", sick=True)))
    findings = (HOT, CAPPED, MISSPELT, DEBUG_LEFT)
    return report(*findings, verdict=Verdict.FINDINGS, skipped=SKIPPED), evidence


def healthy() -> Sample:
    """A node without a fault."""
    evidence = Evidence((*host("node-1", sick=False), *measured("node-1", sick=False)))
    return report(verdict=Verdict.HEALTHY), evidence


def two_hosts() -> Sample:
    """Two nodes, the first one sick."""
    hosts = ("node-1", "node-2")
    evidence = Evidence(
        (*host("node-1", sick=True), *host("node-2", sick=False), *measured(*hosts, sick=True))
    )
    misspelt = replace(MISSPELT, where=Where(hosts=hosts))
    return report(HOT, misspelt, verdict=Verdict.FINDINGS, hosts=hosts, ranks=16), evidence


def incomplete() -> Sample:
    """A machine without a GPU where one probe hung and one collector failed."""
    name = "laptop"
    why = "no NVIDIA driver on this machine"
    evidence = Evidence(
        (
            Cpus(host=name, logical=2, allowed=(0, 1), quota=1.5),
            Memory(host=name, total=24 * GIB, available=20 * GIB, limit=8 * GIB),
            SharedMemory(host=name, filesystem="tmpfs", size=16 * GIB, free=16 * GIB),
            Absent(
                host=name,
                sections=(
                    Absence(section="gpus", why=why),
                    Absence(section="disks", why="no answer within 15 s", crashed=True),
                ),
            ),
            Matmul(
                dtype="float32",
                size=1024,
                rates=tuple(
                    RankRate(place=RankPlace(rank=rank, host=name, device="cpu"), rate=0.09)
                    for rank in range(2)
                ),
            ),
            ProbeRuns(
                runs=(
                    ProbeRun(probe="matmul", outcome="completed", seconds=3.0),
                    ProbeRun(
                        probe="allreduce",
                        outcome="hung",
                        reason="rank 1 did not answer for 30 s",
                        seconds=30.0,
                        ranks=(
                            RankState(
                                rank=1,
                                host=name,
                                last="allreduce 1048576",
                                age=28.0,
                                status="stopped",
                            ),
                        ),
                    ),
                    ProbeRun(probe="host_to_device", outcome="skipped", reason="no GPU"),
                ),
                backend="gloo",
                world_size=2,
            ),
        )
    )
    gpu_checks = (
        "gpu-mig-enabled",
        "gpu-power-capped",
        "gpu-thermal-throttling",
        "nvlink-degraded",
    )
    return (
        report(
            replace(MISSPELT, where=Where(hosts=(name,))),
            verdict=Verdict.INCOMPLETE,
            hosts=(name,),
            ranks=2,
            backend="gloo",
            skipped=tuple(
                Skipped(check=check, reason=f"no gpus evidence: {why}") for check in gpu_checks
            ),
            crashed=(
                Crashed(check="collect disks", error="no answer within 15 s"),
                Crashed(check="probe allreduce", error="hung: rank 1 did not answer for 30 s"),
            ),
        ),
        evidence,
    )


def hostile() -> Sample:
    """Every string that a machine may say about itself, chosen to break a page or a terminal."""
    report_, evidence = sick()
    long = "x" * 300
    bad = replace(
        MISSPELT,
        title=f"{HOSTILE} | **bold** \x1b[2J",
        because=f"{HOSTILE} `a|b` {long} $x$ [link](http://example.com) \u202egnp.exe \udcff",
        evidence=(observation(f"{HOSTILE}|", f"a|b {long}", "", HOSTILE, long),),
        fixes=(
            Fix(summary=HOSTILE, paste=f"echo '{HOSTILE}' # {long}\n```\n</code>", caution=HOSTILE),
        ),
        where=Where(hosts=(HOSTILE,), devices=(long,)),
    )
    return (
        replace(
            report_,
            findings=(bad,),
            skipped=(Skipped(check="clock-skew", reason=f"{HOSTILE} | {long}"),),
            crashed=(Crashed(check="probe allreduce", error=f"{HOSTILE} {long}"),),
        ),
        evidence,
    )


def nothing() -> Sample:
    """A report without any evidence."""
    return report(verdict=Verdict.HEALTHY, hosts=(), ranks=0, backend=""), Evidence()


def many_hosts() -> Sample:
    """A cluster with a fault of each kind, and one that half of the hosts have."""
    hosts = 80
    evidence = fleet(hosts, planted(hosts))
    slow = tuple(
        replace(HOT, because=f"number {n}", where=Where(hosts=(f"node-{n:04}",)))
        for n in range(0, hosts, 2)
    )
    return (
        report(
            *slow,
            MISSPELT,
            verdict=Verdict.FINDINGS,
            hosts=evidence.hosts,
            ranks=8 * hosts,
            crashed=(Crashed(check="collect disks", error="no answer within 15 s"),) * hosts,
        ),
        evidence,
    )


LATE = Finding(
    cause="straggler-rank",
    title="One rank is slower than the others, and all wait for it",
    severity=Severity.WARNING,
    confidence=Confidence.LIKELY,
    where=Where(hosts=("node-1",), ranks=(5,)),
    because="rank 5 works 108 ms of each step of its own, where the others need 78",
    cost=Cost(value=0.25, unit="share of step"),
)


def late_rank() -> Sample:
    """A recorded run of 8 ranks that wait for one."""
    return report(LATE, verdict=Verdict.FINDINGS), training_sample.late_rank()


def slow_loader() -> Sample:
    """A recorded run of two ranks that wait for their loaders."""
    return report(verdict=Verdict.HEALTHY, ranks=2), training_sample.slow_loader()


def failed_rank() -> Sample:
    """A recorded run of which one rank ran out of memory."""
    return report(verdict=Verdict.HEALTHY, ranks=2), training_sample.failed()


def many_ranks() -> Sample:
    """A recorded run of 256 ranks that wait for one."""
    return report(LATE, verdict=Verdict.FINDINGS, ranks=256), training_sample.late_rank(256)


def hostile_run() -> Sample:
    """A recorded run of a script whose every name is chosen to break a page or a terminal."""
    return report(verdict=Verdict.HEALTHY, ranks=2), training_sample.hostile()


SAMPLES = {
    "sick": sick,
    "healthy": healthy,
    "two-hosts": two_hosts,
    "many-hosts": many_hosts,
    "incomplete": incomplete,
    "hostile": hostile,
    "nothing": nothing,
    "late-rank": late_rank,
    "slow-loader": slow_loader,
    "failed-rank": failed_rank,
    "many-ranks": many_ranks,
    "hostile-run": hostile_run,
}
