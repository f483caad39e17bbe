"""Gradients that are clipped or applied while a GradScaler's factor is in them."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, ddp

MADE = 'optimizer = torch.optim.AdamW(model.parameters())\nscaler = torch.amp.GradScaler("cuda")\n'
PASSES = "loss = model(batch).sum()\nscaler.scale(loss).backward()\n"
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
UNSCALE, STEP = "scaler.unscale_(optimizer)\n", "scaler.step(optimizer)\nscaler.update()\n"
APPLY = "optimizer.step()\n"
ZERO = "optimizer.zero_grad()\n"


@pytest.mark.parametrize(
    "made",
    [
        MADE,
        MADE.replace("torch.amp.GradScaler(", "torch.cuda.amp.GradScaler(enabled=args.amp)#"),
        MADE.replace("scaler = torch", "scaler = None if args.full else torch"),
    ],
)
def test_clipped(script: Read, made: str) -> None:
    (one,) = script(ddp(set_up=SET_UP + made, step=PASSES + CLIP + STEP + ZERO)).scaled_gradients
    assert one.at.text == CLIP.strip()
    assert one.scale.text == "scaler.scale(loss).backward()"
    assert not one.applies


def test_applied(script: Read) -> None:
    (one,) = script(ddp(set_up=SET_UP + MADE, step=PASSES + APPLY + ZERO)).scaled_gradients
    assert one.at.text == APPLY.strip()
    assert one.applies


@pytest.mark.parametrize(
    ("made", "step"),
    [
        (MADE, PASSES + UNSCALE + CLIP + STEP + ZERO),
        (MADE, PASSES + STEP + ZERO),
        (MADE, f"{PASSES}if number % 4 == 0:\n    {UNSCALE}    {CLIP}    {STEP}"),
        # Two ways, one of them without a scaler.
        (MADE, f"if args.amp:\n    scaler.step(optimizer)\nelse:\n    {APPLY}{PASSES}"),
        (MADE.replace('"cuda"', "enabled=False"), PASSES + CLIP + STEP),
        (MADE.replace('"cuda"', "**options"), PASSES + CLIP + STEP),
        (MADE, "loss = model(batch).sum()\nloss.backward()\n" + CLIP + APPLY),
        # Another scaler, of the data.
        (MADE, "scaler.scale(batch)\nloss = model(batch).sum()\nloss.backward()\n" + CLIP + APPLY),
    ],
)
def test_quiet(script: Read, made: str, step: str) -> None:
    assert script(ddp(set_up=SET_UP + made, step=step)).scaled_gradients == ()
