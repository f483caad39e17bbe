"""Schedules of a learning rate that move in another unit than they count."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from transformers import get_cosine_schedule_with_warmup

def train(model, optimizer, schedule, loader):
    for x, y in loader:
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {step}

def main(args):
    total = args.epochs * len(loader)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = {made}
    for epoch in range(args.epochs):
        train(model, optimizer, schedule, loader)
        {epoch}

main(parse())
"""
MOVES = "schedule.step()"
EPOCHS = "CosineAnnealingLR(optimizer, T_max=args.epochs)"
STEPS = "CosineAnnealingLR(optimizer, total)"


@pytest.mark.parametrize(
    ("made", "step", "epoch", "counts"),
    [
        (EPOCHS, MOVES, "pass", "epochs"),
        ("CosineAnnealingLR(optimizer, args.epochs - args.warmup_epochs)", MOVES, "", "epochs"),
        ("get_cosine_schedule_with_warmup(optimizer, 3, args.num_epochs)", MOVES, "", "epochs"),
        (STEPS, "pass", MOVES, "steps"),
        ("OneCycleLR(optimizer, 0.1, total_steps=args.max_steps)", "pass", MOVES, "steps"),
        (
            "OneCycleLR(optimizer, 0.1, epochs=args.epochs, steps_per_epoch=len(loader))",
            *("pass", MOVES, "steps"),
        ),
    ],
)
def test_another_unit(script: Read, made: str, step: str, epoch: str, counts: str) -> None:
    (one,) = script(SCRIPT.format(made=made, step=step, epoch=epoch or "pass")).other_units
    assert made in one.made.text
    assert one.at.text == MOVES
    assert one.counts == counts


@pytest.mark.parametrize(
    ("made", "step", "epoch"),
    [
        (EPOCHS, "pass", MOVES),
        (STEPS, MOVES, "pass"),
        ("OneCycleLR(optimizer, 0.1, epochs=args.epochs, steps_per_epoch=len(loader))", MOVES, "0"),
        ("CosineAnnealingLR(optimizer, args.epochs * 500)", MOVES, "pass"),
        ("CosineAnnealingLR(optimizer, 50)", MOVES, "pass"),
        ("CosineAnnealingLR(optimizer, args.length)", MOVES, "pass"),
        # Part of an epoch.
        (EPOCHS, "schedule.step(epoch + number / len(loader))", "pass"),
        (EPOCHS, "if number % len(loader) == 0: schedule.step()", "pass"),
        ("torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)", MOVES, "pass"),
    ],
)
def test_quiet(script: Read, made: str, step: str, epoch: str) -> None:
    assert script(SCRIPT.format(made=made, step=step, epoch=epoch)).other_units == ()


def test_quiet_where_a_step_is_an_epoch(script: Read) -> None:
    assert (
        script(
            f"""
            import torch
            from torch.optim.lr_scheduler import CosineAnnealingLR
            optimizer = torch.optim.AdamW(model.parameters())
            schedule = {EPOCHS}
            for epoch in range(args.epochs):
                optimizer.zero_grad()
                model(everything).backward()
                optimizer.step()
                {MOVES}
            """
        ).other_units
        == ()
    )
