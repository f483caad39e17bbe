"""Evidence and reports to render: a sick node of 8 H100s, a sound one, two, an unfinished look.

The all-reduce follows the published curve of 8×H100; everything else is made up, and no check is
asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddoctor.evidence.environment import Environment, Variable
from ddoctor.evidence.gpus import Gpu, GpuProcess, Gpus, NvLink, PcieLink
from ddoctor.evidence.host import Cpus, Disk, Disks, Kernel, Memory, SharedMemory
from ddoctor.evidence.probes import (
    AllReduce,
    HostToDevice,
    Matmul,
    MemoryBandwidth,
    ProbeRun,
    ProbeRuns,
    RankPlace,
    RankRate,
    RankState,
    StorageRead,
    SweepPoint,
)
from ddoctor.evidence.section import Absence, Absent, Evidence, Section, Unseen
from ddoctor.evidence.software import Software, Torch
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

GIB = 2**30
MODEL = "NVIDIA H100 80GB HBM3"
HOSTILE = '<script>alert("x")</script>'
CURVE = ((16, 2.7), (20, 44.0), (23, 172.0), (25, 296.0), (27, 401.0), (29, 438.0), (30, 466.0))
"""Power of two of the message, GB/s of bus bandwidth (8×H100, Azure AI benchmarking guide)."""


def gpu(index: int, *, sick: bool = False, power_limit: float = 700.0, process: str = "") -> Gpu:
    return Gpu(
        index=index,
        uuid=f"GPU-0000000{index}",
        name=MODEL,
        bus_id=f"0000:{0x18 + index * 8:02x}:00.0",
        capability=(9, 0),
        memory_total=80 * GIB,
        memory_used=(31 if process else 1) * GIB,
        processes=(
            (GpuProcess(pid=4242, memory=30 * GIB, name=process, user="mallory", holder="foreign"),)
            if process
            else ()
        ),
        utilisation=0,
        sm_clock=1095 if sick else 1980,
        sm_clock_maximum=1980,
        memory_clock=2619,
        memory_clock_maximum=2619,
        throttle_reasons=("hw_thermal_slowdown",) if sick else (),
        power=410.0 if sick else 121.0 + index,
        power_limit=power_limit,
        power_default=700.0,
        temperature=88 if sick else 38 + index % 3,
        temperature_slowdown=87,
        ecc_enabled=True,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=0,
        pcie=PcieLink(generation=5, width=16, maximum_generation=5, maximum_width=16, replays=0),
        nvlinks=tuple(
            NvLink(index=link, active=not (sick and link < 2), remote="switch")
            for link in range(18)
        ),
        fabric_state="completed",
        mig=False,
        persistence=True,
        numa_node=index // 4,
    )


def host(name: str, *, sick: bool) -> tuple[Section, ...]:
    return (
        Cpus(
            host=name,
            model="Intel(R) Xeon(R) Platinum 8480C",
            logical=192,
            allowed=tuple(range(192)),
            load=(3.1, 2.8, 2.2),
        ),
        Memory(host=name, total=2016 * GIB, available=1980 * GIB),
        SharedMemory(host=name, filesystem="tmpfs", size=64 * GIB, free=64 * GIB),
        Disks(
            host=name,
            disks=(
                Disk(
                    roles=("working folder",),
                    path="/home/user/train",
                    device="/dev/nvme0n1p2",
                    filesystem="ext4",
                    size=1800 * GIB,
                    free=900 * GIB,
                ),
            ),
        ),
        Kernel(
            host=name,
            release="6.8.0-45-generic",
            container="docker",
            command_line="iommu=pt",
            unseen=(Unseen(what="ACS of PCIe bridges", why="needs root"),),
        ),
        Software(
            host=name,
            python="3.12.3",
            torch=Torch(version="2.9.1+cu128", cuda="12.8", nccl="2.27.5"),
        ),
        Environment(
            host=name,
            variables=(
                Variable(name="NCCL_DEBUG", value="INFO"),
                Variable(name="NCCL_SOCKET_IFNAMES", value="eth0"),
            ),
        ),
        Gpus(
            host=name,
            driver="570.86.15",
            cuda=(12, 8),
            gpus=tuple(
                gpu(
                    index,
                    sick=sick and index == 3,
                    power_limit=500.0 if sick and index == 6 else 700.0,
                    process=HOSTILE if sick and index == 5 else "",
                )
                for index in range(8)
            ),
        ),
    )


def places(*hosts: str) -> tuple[RankPlace, ...]:
    return tuple(
        RankPlace(rank=8 * node + local, host=name, device=f"cuda:{local}", device_name=MODEL)
        for node, name in enumerate(hosts)
        for local in range(8)
    )


def rates(spots: Iterable[RankPlace], rate: float, slow: float) -> tuple[RankRate, ...]:
    """One rate per rank, a little apart; rank 3 has the slow one."""
    return tuple(
        RankRate(
            place=spot,
            rate=slow if spot.rank == 3 else rate * (1 + 0.004 * (spot.rank % 4 - 1.5)),
            spread=rate * 0.005,
        )
        for spot in spots
    )


def measured(*hosts: str, sick: bool) -> tuple[Section, ...]:
    """What the probes measured; without bounds to one host, so the host is empty."""
    spots = places(*hosts)
    share = 0.62 if sick else 1.0
    return (
        AllReduce(
            backend="nccl",
            ranks=spots,
            points=tuple(
                SweepPoint(
                    bytes=2**power,
                    rounds=20,
                    p50=2**power * 1.75 / (busbw * share * 1e9),
                    p99=2**power * 1.9 / (busbw * share * 1e9),
                    minimum=2**power * 1.7 / (busbw * share * 1e9),
                    bus_bandwidth=busbw * share,
                )
                for power, busbw in CURVE
            ),
            algorithm="nvls",
            transport="P2P/CUMEM",
            nccl="2.27.5",
        ),
        Matmul(dtype="bfloat16", size=8192, rates=rates(spots, 712.0, 405.0 if sick else 712.0)),
        MemoryBandwidth(rates=rates(spots, 2950.0, 2940.0)),
        HostToDevice(to_device=rates(spots, 55.1, 54.9), to_host=rates(spots, 54.2, 54.4)),
        StorageRead(
            path="/home/user/train",
            filesystem="ext4",
            sequential=2310.0,
            sequential_bytes=GIB,
            small_files=18400.0,
            small_file_count=2000,
            small_file_bytes=65536,
            cold=True,
        ),
        ProbeRuns(
            runs=tuple(
                ProbeRun(probe=probe, outcome="completed", seconds=4.2)
                for probe in ("allreduce", "matmul", "memory_bandwidth", "host_to_device")
            ),
            backend="nccl",
            world_size=len(spots),
        ),
    )


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


SAMPLES = {
    "sick": sick,
    "healthy": healthy,
    "two-hosts": two_hosts,
    "incomplete": incomplete,
    "hostile": hostile,
    "nothing": nothing,
}
