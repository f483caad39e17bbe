"""The tables of torch.cuda.memory_summary()."""

from __future__ import annotations

import pytest

from ddoctor.evidence.printed_figures import PrintedMemory
from ddoctor.models import Confidence, Severity
from tests.gpu_memory_error import error
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

CAUSE = "cuda-oom-fragmentation"
RULE = f"|{'-' * 75}|\n"


def row(name: str, now: int, peak: int, unit: str) -> str:
    cells = "".join(f"| {cell:6d} {unit:<3} " for cell in (now, peak, 9 * peak, 9 * peak - now))
    return f"| {name:<21} {cells}|\n"


def summary(
    *,
    failures: int = 0,
    retries: int = 0,
    peak: float = 60,
    reserved: float = 62,
    pieces: int = 1,
    unit: str = "GiB",
    device: int = 0,
) -> str:
    """A table with figures in GiB, written in the given unit."""
    factor = {"G": 1, "M": 2**10, "K": 2**20}[unit[0]]
    rows = {
        "Allocated memory": (peak / 2, peak),
        "      from large pool": (peak / 2, peak),
        "Active memory": (peak / 2, peak),
        "GPU reserved memory": (reserved, reserved + 1),
        "      from small pool": (1, 1),
        "Non-releasable memory": (0, pieces),
    }
    table = "".join(
        RULE + row(name, int(now * factor), int(most * factor), unit)
        for name, (now, most) in rows.items()
    )
    return (
        f"|{'=' * 75}|\n"
        f"|                  PyTorch CUDA memory summary, device ID {device:<17d} |\n{RULE}"
        f"|            CUDA OOMs: {failures:<12d} |        cudaMalloc retries: {retries:<8d}  |\n"
        f"|{'=' * 75}|\n"
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
        f"{table}{RULE}| Allocations           |     120    |     140    |    9000    |\n"
        f"|{'=' * 75}|\n"
    )


@pytest.mark.parametrize("unit", ["GiB", "MiB", "KiB", "GB", "MB", "KB"])
def test_the_figures_in_each_unit(read: Read, unit: str) -> None:
    text = "step 10\n" + summary(failures=2, retries=7, pieces=3, unit=unit, device=1)
    (section,) = read(text).all(PrintedMemory)
    (table,) = section.tables
    assert (table.device, table.failures, table.retries, table.line) == (1, 2, 7, 3)
    sizes = (table.most_allocated, table.reserved, table.most_in_pieces)
    assert sizes == (60 * 2**30, 62 * 2**30, 3 * 2**30)


def test_each_rank_prints_its_own(read: Read) -> None:
    text = "".join(
        f"[rank{rank}]: {line}\n" for rank in (0, 1) for line in summary(device=rank).splitlines()
    )
    (section,) = read(text).all(PrintedMemory)
    assert [(one.rank, one.device) for one in section.tables] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(
    ("pieces", "confidence"), [(24, Confidence.LIKELY), (2, Confidence.POSSIBLE)]
)
def test_memory_ran_out_though_much_was_unused(
    diagnose: Diagnose, pieces: int, confidence: Confidence
) -> None:
    text = summary(failures=1, retries=4, peak=50, reserved=74, pieces=pieces)
    (finding,) = diagnose(text).findings
    assert (finding.cause, finding.confidence) == (CAUSE, confidence)
    assert finding.severity is Severity.WARNING
    assert "train.log:2: on GPU 0 memory ran out (1×), and 24.0 of the 74.0 GiB" in finding.because
    assert "expandable_segments:True" in finding.fixes[0].paste


def test_many_retries_are_a_note(diagnose: Diagnose) -> None:
    (finding,) = diagnose(summary(retries=250, peak=50, reserved=74)).findings
    assert (finding.cause, finding.severity) == (CAUSE, Severity.NOTE)
    assert "emptied its cache to try again (250×)" in finding.because


@pytest.mark.parametrize(
    "text",
    [
        summary(),
        # A large cache without need, and a few retries.
        summary(peak=50, reserved=74),
        summary(peak=50, reserved=74, retries=3),
        # The model is too large: nearly all of the reserved memory was used.
        summary(failures=3, retries=40, peak=70, reserved=74),
        # A small GPU: less than 1 GiB.
        summary(failures=1, peak=1.5, reserved=2.2, unit="MiB"),
        # The peak is above what is reserved since.
        summary(failures=1, peak=70, reserved=30),
        # Cut off before the reserved memory.
        summary(failures=1, peak=50, reserved=74).partition("GPU reserved")[0],
    ],
)
def test_sound_tables(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()


def test_an_error_with_figures_is_judged_instead(diagnose: Diagnose) -> None:
    text = (
        summary(failures=1, peak=50, reserved=74)
        + 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n'
        + f"    loss.backward()\ntorch.OutOfMemoryError: {error()}\n"
    )
    causes = [one.cause for one in diagnose(text).findings]
    assert causes
    assert CAUSE not in causes
