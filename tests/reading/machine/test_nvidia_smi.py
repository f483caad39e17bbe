"""nvidia-smi: the table, -q, --query-gpu and topo -m."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.printed import GpuProcesses
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.nvidia_smi_texts import LAYOUTS, Card, csv, query, table

MIB = 2**20
H100 = Card(name="NVIDIA H100 80GB HBM3", total=81559, power="70W / 700W")
CONSUMER = Card(
    name="NVIDIA GeForce RTX 4090",
    total=24564,
    ecc="Off",
    mig="N/A",
    fan="30%",
    state=8,
    power="17W / 450W",
    persistence="Off",
)


def gpus(read: Read, text: str) -> tuple[Gpu, ...]:
    (section,) = read(text).all(Gpus)
    assert section.printed
    return section.gpus


@pytest.mark.parametrize("card", [H100, CONSUMER, Card()], ids=lambda card: card.name)
@pytest.mark.parametrize("driver", LAYOUTS)
def test_a_table_of_each_layout(read: Read, driver: str, card: Card) -> None:
    busy = replace(card, busy="98%", used=20000, state=2, heat=64)
    processes = [(0, 4711, "python3", 3), (1, 4712, "/usr/bin/python3", 19990)]
    (section,) = read(table(driver, [card, busy], processes)).all(Gpus)
    first, second = section.gpus
    assert (section.driver, section.cuda is not None) == (driver, True)
    assert first.name.removesuffix("...") in card.name
    assert (first.index, first.bus_id, second.bus_id) == (0, "0000:19:00.0", "0000:2a:00.0")
    assert (first.memory_total, first.memory_used) == (card.total * MIB, card.used * MIB)
    assert (second.utilisation, second.performance_state, second.temperature) == (98, 2, 64)
    assert first.power_limit == float(card.power.split()[-1].removesuffix("W"))
    assert first.ecc_enabled is (card.ecc != "Off")
    assert first.mig is (False if card.mig == "Disabled" else None)
    assert [one.pid for one in second.processes or ()] == [4712]
    # A table does not say these.
    assert (first.throttle_reasons, first.pcie, first.power_default) == (None, None, None)


@pytest.mark.parametrize("driver", LAYOUTS)
def test_the_processes_alone(read: Read, driver: str) -> None:
    rows = [(0, 4711, "python3", 1546), (0, 4712, "python3", 896), (1, 4712, "python3", 1570)]
    text = table(driver, [H100, H100], rows)
    evidence = read(text[text.rindex("+", 0, text.index("Processes:")) :])
    assert evidence.all(Gpus) == ()
    (section,) = evidence.all(GpuProcesses)
    told = [(one.gpu, one.pid, one.memory // MIB) for one in section.processes]
    assert told == [(0, 4711, 1546), (0, 4712, 896), (1, 4712, 1570)]
    assert read(text).all(GpuProcesses) == ()


@pytest.mark.parametrize(
    "cards",
    [
        [Card()] * 8,
        [H100] * 8,
        [H100],
        [CONSUMER] * 2,
        # A run whose stages use different amounts of memory, at one moment and at another.
        [replace(H100, used=81000 - 9000 * n, busy="100%", power="690W / 700W") for n in range(8)],
        [replace(H100, used=70000, busy="0%", power="120W / 700W") for _ in range(8)],
        # A desktop, whose first card draws the screen, and a cold one beside it.
        [replace(CONSUMER, used=3506, busy="100%"), CONSUMER],
        [replace(CONSUMER, name="NVIDIA GeForce RTX 3060 Laptop GPU", power="N/A /  N/A")],
        [replace(Card(), mig="Enabled", busy="N/A")] * 2,
        [Card(), replace(Card(), name="NVIDIA DGX Display", total=4096, ecc="N/A", mig="N/A")],
    ],
)
@pytest.mark.parametrize("driver", LAYOUTS)
def test_sound_gpus_raise_no_alarm(diagnose: Diagnose, driver: str, cards: list[Card]) -> None:
    report = diagnose(table(driver, cards))
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []
    assert report.exit_code == 0


def test_uncorrected_errors_in_the_table(diagnose: Diagnose) -> None:
    report = diagnose(table("550.54.15", [H100, replace(H100, ecc="3")]))
    (finding,) = report.findings
    assert (finding.cause, finding.where.devices) == ("gpu-hardware-fault", ("cuda:1",))
    assert "3 uncorrected memory errors" in finding.because


def test_a_gpu_of_which_only_errors_are_read(diagnose: Diagnose) -> None:
    text = table("470.57.02", [Card(), replace(Card(), name="ERR!", ecc="ERR!", mig="ERR!")])
    (finding,) = diagnose(text).findings
    assert (finding.cause, finding.severity) == ("gpu-hardware-fault", Severity.ERROR)
    assert "GPU 1" in finding.because


def test_a_table_without_gpus_makes_nothing(read: Read) -> None:
    text = table("550.54.15", []) + "\nFailed to initialize NVML: Unknown Error"
    assert read(text).all(Gpus) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"Performance State": "P8", "PCI/GPU Link Info/PCIe Generation/Current": "1"},
        {"Utilization/Gpu": "100 %", "Clocks Event Reasons/SW Power Cap": "Active"},
        {"Clocks Event Reasons/Idle": "N/A", "Fabric/State": "N/A", "Fabric/Status": "N/A"},
        {"Product Name": "NVIDIA RTX A6000-24Q", "ECC Mode/Current": "N/A", "Processes": "None"},
        {
            "Product Name": "NVIDIA GeForce RTX 4090 Laptop GPU",
            "GPU Power Readings/Current Power Limit": "80.00 W",
            "GPU Power Readings/Default Power Limit": "150.00 W",
            "Clocks Event Reasons/HW Slowdown/HW Power Brake Slowdown": "Active",
        },
        {"MIG Mode/Current": "Enabled"},
    ],
)
@pytest.mark.parametrize("count", [1, 8])
def test_sound_gpus_in_full_raise_no_alarm(
    diagnose: Diagnose, changes: dict[str, str], count: int
) -> None:
    report = diagnose(query(*[changes] * count))
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []


def test_all_of_a_gpu(read: Read) -> None:
    first, _ = gpus(read, query({}, {}))
    assert first == Gpu(
        index=0,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
        name="NVIDIA H100 80GB HBM3",
        bus_id="0000:19:00.0",
        memory_total=81559 * MIB,
        memory_used=MIB,
        memory_reserved=551 * MIB,
        processes=(),
        utilisation=0,
        performance_state=0,
        sm_clock=345,
        sm_clock_maximum=1980,
        memory_clock=2619,
        memory_clock_maximum=2619,
        throttle_reasons=("gpu_idle",),
        power=71.03,
        power_limit=700.0,
        power_default=700.0,
        temperature=33,
        temperature_slowdown=89,
        ecc_enabled=True,
        ecc_uncorrected_volatile=0,
        ecc_uncorrected_aggregate=2,
        ecc_corrected_volatile=0,
        rows_remapped=2,
        remap_pending=False,
        remap_failed=False,
        pcie=first.pcie,
        fabric_state="completed",
        mig=False,
        compute_mode="default",
        persistence=True,
    )
    assert first.pcie is not None
    assert (first.pcie.width, first.pcie.maximum_width, first.pcie.generation) == (16, 16, 5)


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        (
            {"Remapped Rows/Remapping Failure Occurred": "Yes"},
            "gpu-hardware-fault",
            "could not be remapped",
        ),
        (
            {
                "Remapped Rows/Pending": "Yes",
                "ECC Errors/Volatile/DRAM Uncorrectable": "4",
            },
            "gpu-hardware-fault",
            "4 uncorrected memory errors",
        ),
        ({"GPU Reset Status/Reset Required": "Yes"}, "gpu-hardware-fault", "gpu reset"),
        (
            {
                "Clocks Event Reasons/HW Slowdown/HW Thermal Slowdown": "Active",
                "Temperature/GPU Current Temp": "91 C",
            },
            "gpu-thermal-throttling",
            "345 of 1980 MHz at 91 °C",
        ),
        (
            {"Clocks Event Reasons/HW Slowdown/HW Power Brake Slowdown": "Active"},
            "gpu-power-capped",
            "the power supply",
        ),
        (
            {"GPU Power Readings/Current Power Limit": "350.00 W"},
            "gpu-power-capped",
            "350 W, the default 700 W",
        ),
        ({"PCI/GPU Link Info/Link Width/Current": "4x"}, "pcie-link-degraded", "4 lanes"),
        ({"Fabric/State": "In Progress"}, "nvswitch-fabric-fault", "in progress"),
    ],
)
def test_a_sick_gpu(diagnose: Diagnose, changes: dict[str, str], cause: str, words: str) -> None:
    report = diagnose(query({}, {}, changes, {}))
    (finding,) = report.findings
    assert (finding.cause, finding.where.devices) == (cause, ("cuda:2",))
    assert words in finding.because


def test_a_gpu_before_ampere(read: Read) -> None:
    text = """
==============NVSMI LOG==============

Timestamp                                 : Tue Aug 26 15:49:52 2025
Driver Version                            : 470.57.02
CUDA Version                              : 11.4

Attached GPUs                             : 1
GPU 00000000:06:00.0
    Product Name                          : Tesla V100-SXM2-32GB
    Clocks Throttle Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
    Ecc Mode
        Current                           : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory             : 1
                Total                     : 1
            Double Bit
                Device Memory             : 2
                Total                     : 2
        Aggregate
            Double Bit
                Total                     : 9
    Retired Pages
        Pending Page Blacklist            : No
    Remapped Rows                         : N/A
    Power Readings
        Power Draw                        : 42.10 W
        Power Limit                       : 300.00 W
        Default Power Limit               : 300.00 W
"""
    (gpu,) = gpus(read, text)
    assert (gpu.ecc_corrected_volatile, gpu.ecc_uncorrected_volatile) == (1, 2)
    assert (gpu.remap_pending, gpu.rows_remapped) == (False, None)
    assert (gpu.power, gpu.power_limit, gpu.power_default) == (42.1, 300.0, 300.0)
    assert gpu.throttle_reasons == ("sw_power_cap",)


def test_gpus_that_were_left_out_have_no_known_number(read: Read) -> None:
    assert read(query({}, attached=8)).all(Gpus) == ()


COLUMNS = (
    "index, name, driver_version, pci.bus_id, memory.total [MiB], memory.used [MiB], "
    "utilization.gpu [%], temperature.gpu, pstate, ecc.errors.uncorrected.volatile.total, "
    "pcie.link.gen.current, pcie.link.width.current, pcie.link.width.max"
)
ROW = (
    "{0}, NVIDIA A100-SXM4-80GB, 535.104.05, 00000000:0{0}:00.0, 81920 MiB, {1} MiB, {2} %, "
    "60, P0, {3}, 4, {4}, 16"
)


def test_rows_of_columns(read: Read) -> None:
    (section,) = read(csv(COLUMNS, *(ROW.format(n, 70000, 99, 0, 16) for n in range(8)))).all(Gpus)
    assert section.driver == "535.104.05"
    last = section.gpus[7]
    assert (last.index, last.bus_id, last.utilisation) == (7, "0000:07:00.0", 99)
    assert (last.memory_used, last.temperature) == (70000 * MIB, 60)
    assert last.pcie is not None
    assert last.pcie.width == 16


def test_of_repeated_rows_the_last_counts(read: Read) -> None:
    rows = [ROW.format(n, used, 50, 0, 16) for used in (10, 20, 30) for n in range(2)]
    assert [gpu.memory_used for gpu in gpus(read, csv(COLUMNS, *rows))] == [30 * MIB] * 2


def test_rows_that_nothing_tells_apart_make_nothing(read: Read) -> None:
    text = csv("power.draw [W], utilization.gpu [%], temperature.gpu", *["70.0 W, 0 %, 30"] * 8)
    assert read(text).all(Gpus) == ()


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (ROW.format(1, 0, 0, 5, 16), "gpu-hardware-fault"),
        (ROW.format(1, 0, 0, 0, 4), "pcie-link-degraded"),
        (ROW.format(1, 0, 0, 0, 16).replace("60, P0", "[GPU is lost], P0"), "gpu-hardware-fault"),
    ],
)
def test_a_sick_row(diagnose: Diagnose, row: str, cause: str) -> None:
    report = diagnose(csv(COLUMNS, ROW.format(0, 0, 0, 0, 16), row))
    assert [(one.cause, one.where.devices) for one in report.findings] == [(cause, ("cuda:1",))]


def test_heat_without_a_clock(diagnose: Diagnose) -> None:
    columns = "index, clocks_throttle_reasons.hw_thermal_slowdown"
    (finding,) = diagnose(csv(columns, "0, Not Active", "1, Active")).findings
    assert "None" not in finding.because


LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def topology(count: int, cell: dict[tuple[int, int], str], usual: str) -> str:
    names = [f"GPU{n}" for n in range(count)]
    lines = ["\t".join(["", *names, "NIC0", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for a in range(count):
        cells = [
            " X " if a == b else cell.get((a, b), cell.get((b, a), usual)) for b in range(count)
        ]
        lines.append("\t".join([names[a], *cells, "SYS", "0-47,96-143", str(a // 4), "N/A"]))
    lines.append("\t".join(["NIC0", *["SYS"] * count, " X "]))
    return "\n".join([*lines, LEGEND])


def test_paths_and_nodes(read: Read) -> None:
    (section,) = read(topology(8, {(0, 1): "PIX", (2, 3): "SYS"}, "NV18")).all(Gpus)
    paths = {(one.a, one.b): one.path for one in section.peers or ()}
    assert (paths[0, 1], paths[2, 3], paths[4, 5]) == ("pcie-switch", "system", "nvlink")
    assert [gpu.numa_node for gpu in section.gpus] == [0] * 4 + [1] * 4


def test_a_gpu_with_fewer_links(diagnose: Diagnose) -> None:
    sick = {(3, other): "NV16" for other in range(8)}
    report = diagnose(table("550.54.15", [H100] * 8) + topology(8, sick, "NV18"))
    (finding,) = report.findings
    assert (finding.cause, finding.where.devices) == ("nvlink-degraded", ("cuda:3",))
    assert "16 active NVLinks, equal GPUs have 18" in finding.because


HYPERCUBE = {
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 4)], "NV1"),
    **dict.fromkeys([(0, 3), (1, 2), (4, 5)], "NV2"),
}


@pytest.mark.parametrize(
    ("cards", "cells", "usual"),
    [
        ([H100] * 8, {}, "NV18"),
        ([Card()] * 2, {}, "NV12"),
        # Some GPUs of a machine whose GPUs are linked in pairs and rings, in a container.
        ([Card(name="Tesla V100-SXM2-32GB")] * 6, HYPERCUBE, "SYS"),
        ([Card(name="NVIDIA H100 NVL")] * 5, {(0, 1): "NV12", (2, 3): "NV12"}, "SYS"),
        ([CONSUMER] * 4, {}, "PHB"),
        ([Card(name="NVIDIA A100-SXM4-40GB")] * 4, {}, "NV4"),
    ],
)
def test_sound_links_raise_no_alarm(
    diagnose: Diagnose, cards: list[Card], cells: dict[tuple[int, int], str], usual: str
) -> None:
    report = diagnose(table("535.104.05", cards) + topology(len(cards), cells, usual))
    assert report.findings == ()


def test_outputs_of_one_host_are_joined(read: Read) -> None:
    text = table("550.54.15", [Card()] * 2) + query({}, {}) + topology(2, {}, "NV12")
    first, _ = gpus(read, text)
    assert (first.name, first.numa_node, first.remap_failed) == ("NVIDIA H100 80GB HBM3", 0, False)
