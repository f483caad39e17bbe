"""What commands print on the sound host, beyond what ddoctor sees itself."""

from __future__ import annotations

from ddoctor.evidence.printed import (
    GpuDiagnostic,
    GpuProcesses,
    LinkErrors,
    ListedProcess,
    NcclTest,
    NcclTestPoint,
    NcclTests,
    NvLinkErrors,
    PairBandwidth,
    PeerBandwidth,
    PrintedOutput,
    PrintedOutputs,
)
from ddoctor.evidence.printed_figures import (
    AllocatorTable,
    PhaseTimes,
    PrintedMemory,
    PrintedTimes,
)
from ddoctor.evidence.printed_pace import PaceSeries, PrintedPace
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Section
from tests.healthy.gpus import GPUS
from tests.healthy.host import HOST

SECTIONS: tuple[Section, ...] = (
    PrintedOutputs(
        outputs=(PrintedOutput(command="nccl-tests", file="job.out", line=3, host=HOST),)
    ),
    PrintedPace(
        series=(
            PaceSeries(
                figure="s/it",
                file="job.out",
                rank=0,
                per_second=False,
                lines=tuple(range(1, 101)),
                steps=tuple(range(100)),
                values=tuple(1.8 + 0.01 * (number % 7) for number in range(100)),
            ),
        )
    ),
    PrintedTimes(
        printed=True,
        tables=(
            PhaseTimes(
                file="job.out",
                line=40,
                rank=0,
                tool="Lightning's profiler",
                count=5000,
                in_all=True,
                whole=1200.0,
                loader=14.0,
                checkpoint=31.0,
                saves=10,
            ),
            PhaseTimes(
                file="job.out",
                line=60,
                tool="the timers of the training",
                count=50,
                whole=0.24,
                passes=0.21,
                communication=0.02,
                optimizer=0.03,
            ),
        ),
    ),
    PrintedMemory(
        printed=True,
        tables=(
            AllocatorTable(
                file="job.out",
                line=90,
                device=0,
                failures=0,
                retries=2,
                most_allocated=61 * 2**30,
                reserved=66 * 2**30,
                most_in_pieces=2 * 2**30,
            ),
        ),
    ),
    GpuDiagnostic(host=HOST, printed=True),
    GpuProcesses(
        host=HOST,
        printed=True,
        processes=tuple(
            ListedProcess(gpu=gpu.index, pid=4711 + gpu.index, name="python", memory=40 * 2**30)
            for gpu in GPUS
        ),
    ),
    NvLinkErrors(host=HOST, printed=True, links=(LinkErrors(gpu=0, link=0),)),
    PeerBandwidth(
        host=HOST,
        printed=True,
        pairs=tuple(
            PairBandwidth(a=one.index, b=other.index, through_host=28.4, direct=390.0)
            for one in GPUS
            for other in GPUS
            if one != other
        ),
    ),
    NcclTests(
        host=HOST,
        printed=True,
        tests=(
            NcclTest(
                collective="all_reduce",
                ranks=tuple(
                    RankPlace(rank=gpu.index, host=HOST, device=gpu.device, device_name=gpu.name)
                    for gpu in GPUS
                ),
                points=(
                    NcclTestPoint(bytes=2**30, bus_bandwidth=466.57, wrong=0),
                    NcclTestPoint(bytes=2**33, bus_bandwidth=480.1, wrong=0),
                ),
            ),
        ),
    ),
)
