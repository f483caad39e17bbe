"""The tables of nccl-tests."""

from __future__ import annotations

import pytest

from ddoctor.evidence.printed import NcclTests
from ddoctor.models import Confidence, Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

H100 = "NVIDIA H100 80GB HBM3"


def printed(
    rate: float,
    *,
    gpus: int = 8,
    name: str = H100,
    wrong: str = "0",
    hosts: int = 1,
    program: str = "all_reduce",
    names_itself: bool = True,
) -> str:
    """The output of a program at a bus bandwidth in GB/s."""
    factor = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0}[program]
    factor *= (gpus - 1) / gpus
    operation = "none" if program == "all_gather" else "sum"
    ranks = "".join(
        f"#  Rank {rank:2} Group  0 Pid {1623018 + rank} on {'node-' + str(rank % hosts):>10} "
        f"device {rank:2} [0x{0x1B + rank:x}] {name}\n"
        for rank in range(gpus)
    )
    rows = ""
    for size in (2**20, 2**28, 2**30, 2**33):
        bus = rate if size > 2**20 else rate / 20
        cells = f"{4 * size / rate / 1e3:8.1f} {bus / factor:7.2f} {bus:7.2f}"
        rows += (
            f"{size:12} {size // 4:13} {'float':>9} {operation:>7}      -1 {cells}   "
            f"{wrong:>4} {cells}   {wrong:>4}\n"
        )
    head = f"# Collective test starting: {program}_perf\n" if names_itself else ""
    return (
        f"{head}# nThread 1 nGpus {gpus} minBytes 1048576 maxBytes 8589934592 step: 2(factor) "
        "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
        f"{ranks}#\n"
        "#                                              out-of-place              in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
        "     (us)  (GB/s)  (GB/s)\n"
        f"{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {rate / 2:.3f}\n#\n"
    )


@pytest.mark.parametrize("names_itself", [True, False])
@pytest.mark.parametrize("program", ["all_reduce", "reduce_scatter", "all_gather"])
def test_a_table(read: Read, program: str, names_itself: bool) -> None:
    text = printed(470, program=program, names_itself=names_itself)
    (section,) = read(text).all(NcclTests)
    (one,) = section.tests
    told = program if names_itself or program == "all_reduce" else ""
    assert (one.collective, one.device_name, len(one.ranks)) == (told, H100, 8)
    assert one.within_node
    assert [point.bytes for point in one.points] == [2**20, 2**28, 2**30, 2**33]
    assert one.points[-1].bus_bandwidth == 470
    assert one.points[-1].wrong == 0


def test_rows_between_lines_of_nccl(read: Read) -> None:
    text = printed(470).replace(
        "# Using devices\n", "# Using devices\nnode-0:77:78 [0] NCCL INFO Using network Socket\n"
    )
    (section,) = read(text).all(NcclTests)
    assert len(section.tests[0].points) == 4


def test_a_slow_all_reduce(diagnose: Diagnose) -> None:
    (finding,) = diagnose(printed(120)).findings
    assert finding.cause == "collective-slow-for-hardware"
    assert "120 GB/s" in finding.because


def test_hosts_that_use_tcp_between_them(diagnose: Diagnose) -> None:
    (finding,) = diagnose(printed(5, hosts=2)).findings
    assert finding.cause == "collective-slow-for-hardware"
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "5 GB/s" in finding.because
    assert "TCP or one slow adapter" in finding.because


def test_wrong_values(diagnose: Diagnose) -> None:
    (finding,) = diagnose(printed(470, wrong="17")).findings
    assert (finding.cause, finding.severity) == ("wrong-collective-result", Severity.ERROR)
    assert "17 at 1048576 bytes" in finding.because


@pytest.mark.parametrize(
    "text",
    [
        printed(475),
        printed(370),
        printed(120, hosts=2),
        printed(20, hosts=2),
        printed(5, hosts=2, gpus=4),
        printed(5, hosts=2, name="NVIDIA H100 PCIe"),
        printed(5, hosts=2, name="NVIDIA L4"),
        printed(5, hosts=2, program="all_gather"),
        printed(120, program="all_gather"),
        printed(40, name="NVIDIA A10G", gpus=4),
        printed(120, gpus=2),
        printed(470, wrong="N/A"),
    ],
)
def test_sound_results_raise_no_alarm(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()
