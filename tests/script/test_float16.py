"""Trainings in float16 whose loss nothing scales, and weights of float16."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, ddp


def autocast(words: str, back: str = "loss.backward()") -> str:
    step = f"with {words}:\n    loss = model(batch).sum()\n{back}\noptimizer.step()"
    adam = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
    return ddp(set_up=SET_UP + adam, step=step)


@pytest.mark.parametrize(
    "words",
    [
        'torch.autocast("cuda", dtype=torch.float16)',
        'torch.autocast(device_type="cuda", dtype=torch.half)',
        'torch.amp.autocast("cuda")',
        "torch.cuda.amp.autocast()",
    ],
)
def test_float16_that_nothing_scales(script: Read, words: str) -> None:
    line = script(autocast(words)).unscaled_float16
    assert line is not None
    assert words in line.text


@pytest.mark.parametrize(
    "source",
    [
        autocast('torch.autocast("cuda", dtype=torch.bfloat16)'),
        autocast('torch.autocast("cuda", torch.bfloat16)'),
        autocast('torch.autocast("cuda", dtype=precision)'),
        autocast('torch.autocast("cpu")'),
        autocast("torch.cuda.amp.autocast(enabled=args.amp)"),
        autocast("torch.cuda.amp.autocast(dtype=torch.bfloat16)"),
        autocast('torch.autocast("cuda")', "scaler.scale(loss).backward()"),
        autocast("torch.no_grad()"),
    ],
)
def test_quiet_about_scaled_or_wider_types(script: Read, source: str) -> None:
    assert script(source).unscaled_float16 is None


HALF = "net = Net().to(local_rank)\n{turns}\nmodel = DDP(net)\n"


def halved(turns: str) -> str:
    return ddp(
        set_up=SET_UP.replace("model = DDP(Net().to(local_rank))\n", HALF.format(turns=turns))
    )


@pytest.mark.parametrize(
    "turns", ["net = net.half()", "net.to(torch.float16)", "net.to(dtype=torch.half)"]
)
def test_weights_of_float16(script: Read, turns: str) -> None:
    (line,) = script(halved(turns)).half_models
    assert line.text == turns


@pytest.mark.parametrize(
    "turns", ["", "net.to(torch.bfloat16)", "teacher.half()", "batch = batch.half()", "net.float()"]
)
def test_quiet_about_other_weights(script: Read, turns: str) -> None:
    assert script(halved(turns)).half_models == ()
