"""The table of Lightning's SimpleProfiler."""

from __future__ import annotations

import pytest

from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.models import Confidence, Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

LOADER = "[_TrainingEpochLoop].train_dataloader_next"
SAVING = "[Callback]ModelCheckpoint{'monitor': 'val_loss', 'mode': 'min'}.on_train_batch_end"
BAR = "Epoch 0: 100%|##########| 500/500 [01:40<00:00,  4.98it/s, v_num=0]\n"
Rows = dict[str, tuple[float, int]]


def rows(
    *, loader: float = 2.0, batches: int = 500, epoch: float = 100.0, name: str = LOADER
) -> Rows:
    """Seconds and calls of the actions of a training."""
    return {
        "run_training_epoch": (epoch, 1),
        "run_training_batch": (epoch - loader - 1, batches),
        "[Strategy]DDPStrategy.backward": (40.0, batches),
        name: (loader, batches + 1),
        "[LightningModule]Net.optimizer_step": (epoch - loader - 2, batches),
        "[Callback]TQDMProgressBar.on_train_batch_end": (0.5, batches),
        "[Callback]ModelSummary{'max_depth': 1}.on_fit_start": (1.2e-05, 1),
    }


def table(actions: Rows, *, title: str = "FIT Profiler Report", bars: bool = True) -> str:
    """As the current versions print it, and those before 1.6."""
    width = max(map(len, actions))
    whole = sum(seconds for seconds, _ in actions.values())

    def line(*cells: str) -> str:
        if bars:
            name, mean, *rest = cells
            others = "".join(f"  {cell:<15}\t|" for cell in rest)
            return f"|  {name:<{width}s}\t|  {mean:<15}\t|{others}\n"
        return f"{cells[0]:<{width}s}\t|" + "|".join(f"  {one:<15}\t" for one in cells[1:]) + "|\n"

    rule = "-" * 120 + "\n"
    head = line("Action", "Mean duration (s)", "Num calls", "Total time (s)", "Percentage %")
    total = line("Total", "-", "_", f"{whole:.5}", "100 %")
    body = "".join(
        line(name, f"{s / n:.5}", f"{n}", f"{float(s):.5}", f"{100 * s / whole:.5}")
        for name, (s, n) in actions.items()
    )
    return f"{title}\n\n{rule}{head}{rule}{total}{rule}{body}{rule}"


def short_table(actions: Rows) -> str:
    """Without numbers of calls."""
    body = "".join(
        f"|  {name:<90}\t|  {s / n:<15.5}\t|  {float(s):<15.5}\t|\n"
        for name, (s, n) in actions.items()
    )
    head = f"|  {'Action':<90}\t|  Mean duration (s)\t|  Total time (s) \t|\n"
    return f"FIT Profiler Report\n\n{'-' * 130}\n{head}{'-' * 130}\n{body}{'-' * 130}\n"


@pytest.mark.parametrize(
    "text",
    [
        table(rows(loader=45)),
        table(
            rows(loader=45), title="INFO:lightning.pytorch.profilers.profiler:FIT Profiler Report"
        ),
        table(rows(loader=45), title="Profiler Report", bars=False),
        table(rows(loader=45)).partition("\n\n")[2],
        table(rows(loader=45, name="get_train_batch"), bars=False),
        table(rows(loader=45, name="[TrainingEpochLoop].train_dataloader_next")),
        short_table(rows(loader=45)),
    ],
)
def test_the_loader_of_each_version(read: Read, text: str) -> None:
    (section,) = read(BAR + text + BAR).all(PrintedTimes)
    (one,) = section.tables
    assert (one.loader, one.whole, one.in_all) == (45.0, 100.0, True)
    assert one.count == pytest.approx(500, abs=2)
    assert one.file == "0.txt"


def test_a_slow_loader(diagnose: Diagnose) -> None:
    (finding,) = diagnose(table(rows(loader=45))).findings
    assert finding.cause == "dataloader-bottleneck"
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "for 45 of 100 s (45%), in 500 batches" in finding.because


@pytest.mark.parametrize(
    "hook",
    ["[LightningModule]Net.on_after_backward", "[Callback]Histograms{}.on_train_batch_end"],
)
def test_a_slow_hook(diagnose: Diagnose, hook: str) -> None:
    (finding,) = diagnose(table(rows() | {hook: (50.0, 500)})).findings
    assert finding.cause == "step-loop-overhead"
    assert f"{hook} takes 50 of 100 s (50%), in 500 batches" in finding.because


def without_batches(actions: Rows) -> Rows:
    return {name: row for name, row in actions.items() if name != "run_training_batch"}


def test_a_table_that_was_cut_down(diagnose: Diagnose, read: Read) -> None:
    (finding,) = diagnose(table(without_batches(rows(loader=45)))).findings
    assert finding.cause == "dataloader-bottleneck"
    (section,) = read(table(without_batches(rows(loader=2)))).all(PrintedTimes)
    assert [(one.count, one.whole, one.loader) for one in section.tables] == [(501, 100.0, 2.0)]


def test_the_start_of_the_workers_may_be_all(diagnose: Diagnose) -> None:
    (finding,) = diagnose(table(rows(loader=9, batches=20, epoch=30))).findings
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)


@pytest.mark.parametrize(
    "actions",
    [
        rows(),
        rows(loader=15),
        rows(loader=8, batches=5, epoch=10),
        # It loads before the training, and for an evaluation.
        rows() | {"[LightningModule]Net.train_dataloader": (80.0, 1)},
        rows() | {"[_EvaluationLoop].val_next": (60.0, 200)},
        # A sanity check alone.
        {"[_EvaluationLoop].val_next": (60.0, 200), "run_sanity_check": (61.0, 1)},
        rows() | {SAVING: (3.0, 500), "save_checkpoint": (3.0, 3)},
        # Once at the end of a short run.
        rows() | {SAVING: (40.0, 500), "save_checkpoint": (40.0, 1)},
        # What another callback does, in little time, or seldom.
        rows() | {"[Callback]EarlyStopping{'monitor': 'a'}.on_train_batch_end": (5.0, 500)},
        rows() | {"[LightningModule]Net.on_validation_epoch_end": (50.0, 10)},
        rows() | {"[Callback]TQDMProgressBar.on_train_batch_end": (30.0, 500)},
    ],
)
def test_sound_tables(diagnose: Diagnose, actions: Rows) -> None:
    assert diagnose(BAR + table(actions) + BAR).findings == ()


@pytest.mark.parametrize(
    ("more", "confidence"),
    [
        ({SAVING: (30.0, 500), "save_checkpoint": (30.0, 10)}, Confidence.LIKELY),
        ({"[Callback]ModelCheckpoint.on_train_epoch_end": (30.0, 10)}, Confidence.POSSIBLE),
    ],
)
def test_checkpoints_that_stop_the_training(
    diagnose: Diagnose, more: Rows, confidence: Confidence
) -> None:
    (finding,) = diagnose(table(rows() | more)).findings
    assert (finding.cause, finding.confidence) == ("checkpoint-stall", confidence)
    assert finding.severity is Severity.WARNING
    assert "to save checkpoints for 30 of 100 s (30%)" in finding.because


def test_tables_of_other_profilers_are_left_alone(read: Read) -> None:
    text = "FIT Profiler Report\n\nProfile stats for: run_training_epoch\n  1000 function calls\n"
    assert read(text).all(PrintedTimes) == ()
