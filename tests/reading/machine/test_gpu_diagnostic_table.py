"""`dcgmi diag` as a table, of DCGM 2, 3 and 4."""

from __future__ import annotations

import pytest

from ddoctor.evidence.printed import GpuDiagnostic
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

Row = tuple[str, str]
LINE = f"+{'-' * 27}+{'-' * 48}+"
ROW_REMAP = "GPU 3 has uncorrectable memory errors and row remappings are pending"
WRONG = "Detected 2 wrong values in a copy over PCIe from GPU 1, which is more than the limit of 0"
PERSISTENCE = "Persistence mode for GPU 3 is currently disabled. Enable it by nvidia-smi -pm 1."


def said(name: str, text: str) -> list[Row]:
    """A text in pieces of 45 characters, as dcgmi cuts it."""
    pieces = [text[start : start + 45] for start in range(0, len(text), 45)]
    return [("" if place else name, piece) for place, piece in enumerate(pieces)]


def category(name: str, edge: str = "+") -> str:
    return f"{edge}{f'-----  {name}  ':-<27}+{'-' * 48}{edge}"


def table(**categories: list[Row]) -> str:
    def row(name: str, info: str) -> str:
        return f"| {name:<25} | {info:<46} |"

    lines = ["Successfully ran diagnostic for group.", LINE, row("Diagnostic", "Result")]
    lines += [LINE.replace("-", "="), category("Metadata", "|"), row("DCGM Version", "3.3.8")]
    lines += [row("Driver Version Detected", "535.161.08")]
    for name, rows in categories.items():
        lines += [
            category(name, "|" if name == "Deployment" else "+"),
            *(row(*one) for one in rows),
        ]
    return "\n".join([*lines, LINE, ""])


OF_3: list[Row] = [
    ("Denylist", "Pass"),
    ("NVML Library", "Pass"),
    ("Page Retirement/Row Remap", "Pass"),
    ("Inforom", "Skip"),
]
ALL: list[Row] = [("GPU Memory", "Pass - All"), ("Pulse Test", "Skip - All")]


def of_4(test: str, *results: str, text: str = "", whole: str = "Fail") -> list[Row]:
    """A test of DCGM 4; the text is of each GPU that fails."""
    rows = [(test, whole)]
    for gpu, result in enumerate(results):
        rows.append(("", f"GPU{gpu}: {result}"))
        rows += said(f"Warning: GPU{gpu}", text) if result == "Fail" else []
    return rows


@pytest.mark.parametrize(
    ("text", "test", "gpus", "words"),
    [
        (
            table(
                Deployment=OF_3,
                Integration=[
                    ("PCIe", "Pass - GPUs: 0, 2, 3"),
                    ("", "Fail - GPU: 1"),
                    *said("Warning", WRONG),
                    *said("Info", "GPU 0 sent 25.1 GB/s"),
                ],
                Hardware=ALL,
            ),
            "PCIe",
            [1],
            WRONG,
        ),
        (
            table(
                Deployment=[
                    *OF_3[:2],
                    ("Page Retirement/Row Remap", "Fail"),
                    *said("Error", ROW_REMAP),
                ]
            ),
            "Page Retirement/Row Remap",
            [None],
            ROW_REMAP,
        ),
        (table(Hardware=[("GPU Memory", "Fail - GPUs: 0, 3")]), "GPU Memory", [0, 3], ""),
        (table(Hardware=[("Diagnostic", "Fail - All")]), "Diagnostic", [None], ""),
        (
            table(
                Deployment=of_4("software", "Pass", "Pass", whole="Pass"),
                Integration=of_4("pcie", "Pass", "Fail", text=WRONG),
            ),
            "pcie",
            [1],
            WRONG,
        ),
        (
            table(Deployment=of_4("software", "Fail", "Pass", text=ROW_REMAP)),
            "software",
            [0],
            ROW_REMAP,
        ),
        (
            table(
                Stress=[
                    ("Memtest", f"Pass - GPUs: {', '.join(map(str, range(15)))}"[:43] + "..."),
                    ("", "Fail - GPU: 15"),
                ]
            ),
            "Memtest",
            [15],
            "",
        ),
    ],
)
def test_a_failed_test(
    read: Read, diagnose: Diagnose, text: str, test: str, gpus: list[int | None], words: str
) -> None:
    (section,) = read(text).all(GpuDiagnostic)
    assert [(one.test, one.gpu, one.text) for one in section.failures] == [
        (test, gpu, words) for gpu in gpus
    ]
    finding = next(one for one in diagnose(text).findings if one.cause == "gpu-hardware-fault")
    assert finding.severity is Severity.ERROR
    assert finding.where.devices == tuple(f"cuda:{gpu}" for gpu in gpus if gpu is not None)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "Thermal violations totaling 13.3 seconds started at 9.7 seconds",
            "gpu-thermal-throttling",
        ),
        (
            "Temperature 96 of GPU 1 exceeded user-specified maximum allowed",
            "gpu-thermal-throttling",
        ),
        ("GPU 1 is running at PCI link width 8X, which is below 16X", "pcie-link-degraded"),
        ("GPU 1's NvLink link 11 is currently down", "nvlink-degraded"),
        ("GPU 1 unsuccessfully wrote data in a peer-to-peer test: error", "gpu-p2p-broken"),
        ("NVSwitch 9's NvLink 3 is down", "nvswitch-fabric-fault"),
        ("GPU 1 had uncorrectable memory errors and row remappings", "gpu-hardware-fault"),
        ("some words of a later version", "gpu-hardware-fault"),
    ],
)
def test_its_words_tell_the_cause(diagnose: Diagnose, words: str, cause: str) -> None:
    (finding,) = diagnose(table(Integration=of_4("pcie", "Pass", "Fail", text=words))).findings
    assert (finding.cause, finding.where.devices) == (cause, ("cuda:1",))


@pytest.mark.parametrize(
    "text",
    [
        table(Deployment=OF_3),
        table(Deployment=OF_3, Integration=[("PCIe", "Pass - All")], Hardware=ALL),
        table(Deployment=[("Persistence Mode", "Fail"), *said("Error", PERSISTENCE), *OF_3]),
        table(Deployment=[("Blacklist", "Fail"), ("CUDA Main Library", "Fail"), *OF_3]),
        table(Deployment=of_4("software", "Fail", "Fail", text=PERSISTENCE)),
        table(Integration=[("PCIe", "Warn - GPU: 1"), *said("Warning", "slower than it could be")]),
        table(Integration=of_4("pcie", "Pass", "Fail", text="slower", whole="Warn")),
        table(Hardware=of_4("memory", "Pass", "Pass", whole="Pass")),
        table(Hardware=of_4("memory", "Skip", "Skip", whole="Skip")),
        table(
            Stress=[("Targeted Power", "Pass - All"), *said("Info", "Fail is a word of this text")]
        ),
        table(),
        "| Diagnostic                | Result |\n| the table of a paper      | Fail   |\n",
        table(Hardware=[("GPU Memory", "Fail - GPU: 0")]).partition("| Diagnostic")[0],
    ],
)
def test_what_is_no_fault_raises_no_alarm(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()
