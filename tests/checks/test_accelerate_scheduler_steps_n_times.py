from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Severity
from ddoctor.script.reader import read
from tests.conftest import Findings
from tests.launch.reviewed import causes, reviewed
from tests.live_look import look, moving
from tests.script.twins.models import SCHEDULED

CAUSE = "accelerate-scheduler-steps-n-times"
FOUR = "accelerate launch --num_processes 4 train.py --max_train_steps 1000"
EACH_STEP = """
    import argparse
    import torch
    from accelerate import Accelerator
    from transformers import get_scheduler

    parser = argparse.ArgumentParser()
    parser.add_argument("--max_train_steps", type=int)
    args = parser.parse_args()
    accelerator = Accelerator()
    model, loader = net(), batches()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=10, num_training_steps=TOTAL)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for batch in loader:
        accelerator.backward(model(batch))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
"""
GIVEN = EACH_STEP.replace("TOTAL", "args.max_train_steps")
EACH_EPOCH = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model, loader = net(), batches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(90):
        for batch in loader:
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
"""
LINEAR = 'get_scheduler("linear", optimizer, num_warmup_steps=10, num_training_steps=TOTAL)'
ONE_CYCLE = EACH_STEP.replace(LINEAR, "torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, 5000)")


@pytest.mark.parametrize(
    ("source", "says", "confidence"),
    [
        (GIVEN, "has 1,000 steps (the command line)", Confidence.POSSIBLE),
        (EACH_STEP.replace("TOTAL", "2000"), "has 2,000 steps (train.py:12)", Confidence.POSSIBLE),
        (ONE_CYCLE, "has 5,000 steps (train.py:12)", Confidence.POSSIBLE),
        (EACH_EPOCH, "train.py:14 (`schedule.step()`) steps the scheduler once", Confidence.LIKELY),
    ],
)
def test_it_is_told(tmp_path: Path, source: str, says: str, confidence: Confidence) -> None:
    (found,) = [one for one in reviewed(tmp_path, FOUR, source) if one.cause == CAUSE]
    assert says in found.because
    assert (found.severity, found.confidence) == (Severity.WARNING, confidence)


@pytest.mark.parametrize(
    ("command", "source"),
    [
        (FOUR.replace("4", "1", 1), GIVEN),
        (FOUR, EACH_STEP.replace("TOTAL", "args.max_train_steps * accelerator.num_processes")),
        (FOUR, EACH_STEP.replace("TOTAL", "len(loader) * 3")),
        (FOUR, EACH_STEP.replace("TOTAL", "count_steps(args)")),
        (FOUR, GIVEN.replace("Accelerator()", "Accelerator(split_batches=True)")),
        (FOUR, GIVEN.replace("Accelerator()", "Accelerator(step_scheduler_with_optimizer=False)")),
        # Not prepared: it steps once for each call.
        (FOUR, GIVEN.replace("loader, schedule)", "loader)")),
        (FOUR.replace(" --max_train_steps 1000", ""), GIVEN),
        (FOUR, EACH_EPOCH.replace("loader, schedule)", "loader)")),
        ("torchrun --nproc-per-node 4 train.py", EACH_EPOCH.replace("accelerat", "acceler")),
    ],
)
def test_it_is_quiet(tmp_path: Path, command: str, source: str) -> None:
    assert CAUSE not in causes(tmp_path, command, source)


def live(number: int) -> LiveLook:
    return look(*map(moving, range(number)))


def written(total: str, tmp_path: Path, accelerator: str = "") -> Script:
    source = SCHEDULED.format(total).replace("gradient_accumulation_steps=4", accelerator)
    (tmp_path / "train.py").write_text(source)
    return read(tmp_path / "train.py", ())


def test_in_a_live_run(findings: Findings, tmp_path: Path) -> None:
    script = written("len(loader) * args.epochs", tmp_path)
    (finding,) = findings(CAUSE, live(2), script)
    assert "counts the batches of one rank" in finding.because
    assert "makes 2 of them, one per rank" in finding.because


@pytest.mark.parametrize(
    ("total", "ranks", "accelerator"),
    [
        ("len(loader) * accelerator.num_processes", 2, ""),
        ("len(loader) * args.epochs", 1, ""),
        ("len(loader) * args.epochs", 2, "step_scheduler_with_optimizer=False"),
    ],
)
def test_quiet_in_a_live_run(
    findings: Findings, tmp_path: Path, total: str, ranks: int, accelerator: str
) -> None:
    assert findings(CAUSE, live(ranks), written(total, tmp_path, accelerator)) == ()
