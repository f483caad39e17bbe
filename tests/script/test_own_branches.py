"""Where a rank leaves a training loop, or a step of it, by its own batch."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, ddp

ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
FORWARD = "loss = model(batch).sum()\n"
BACK = "loss.backward()\noptimizer.step()\n"


def steps(step: str) -> str:
    return ddp(set_up=SET_UP + ADAM, step=step)


@pytest.mark.parametrize(
    ("step", "ends"),
    [
        (FORWARD + BACK + "if loss.item() < 0.1:\n    break", True),
        (FORWARD + BACK + "value = loss.item()\nif value < 0.1:\n    break", True),
        ("if (batch > 0).any():\n    continue\n" + FORWARD + BACK, False),
        (FORWARD + "if loss.max() > 100:\n    continue\n" + BACK, False),
    ],
)
def test_a_rank_leaves_by_its_batch(script: Read, step: str, ends: bool) -> None:
    (one,) = script(steps(step)).own_skips
    assert one.ends is ends


@pytest.mark.parametrize(
    "step",
    [
        FORWARD + BACK,
        "if step >= args.steps:\n    break\n" + FORWARD + BACK,
        "if len(batch) < 8:\n    continue\n" + FORWARD + BACK,
        FORWARD + BACK + "if loss.item() < 0.1:\n    continue\nlog(loss)",
        FORWARD + BACK + "dist.all_reduce(loss)\nif loss.item() < 0.1:\n    break",
        FORWARD + BACK + "if rank == 0 and loss.item() < 0.1:\n    print(loss)",
        f"with model.join():\n    pass\n{FORWARD}{BACK}if loss.item() < 0.1:\n    break",
        FORWARD + BACK + "if args.early and loss.item() < 0.1:\n    break",
        f"for part in batch:\n    if part.any():\n        break\n{FORWARD}{BACK}",
    ],
)
def test_quiet_about_other_ends(script: Read, step: str) -> None:
    assert script(steps(step)).own_skips == ()


def caught(error: str, handler: str) -> str:
    return steps(
        f"try:\n    loss = model(batch).sum()\n    loss.backward()\n{error}\n    {handler}\n"
        "optimizer.step()"
    )


@pytest.mark.parametrize(
    ("error", "handler"),
    [
        ("except torch.cuda.OutOfMemoryError:", "torch.cuda.empty_cache()"),
        ("except RuntimeError:", "continue"),
        ("except:", "continue"),
        ("except (ValueError, RuntimeError) as error:", "print(error)"),
        ("except KeyError:", "skipped = 1"),
    ],
)
def test_a_rank_goes_on_after_its_error(script: Read, error: str, handler: str) -> None:
    (line,) = script(caught(error, handler)).own_catches
    assert line.text == error


@pytest.mark.parametrize(
    ("error", "handler"),
    [
        ("except RuntimeError:", "print(batch); raise"),
        ("except KeyboardInterrupt:", "continue"),
        ("except RuntimeError:", "break"),
    ],
)
def test_quiet_about_errors_that_end_the_run(script: Read, error: str, handler: str) -> None:
    assert script(caught(error, handler)).own_catches == ()


@pytest.mark.parametrize(
    ("learns", "told"), [("loss.backward()\n    return loss", 1), ("return loss.item()", 0)]
)
def test_an_error_in_a_function_of_the_step(script: Read, learns: str, told: int) -> None:
    function = f"def learn(batch):\n    loss = model(batch).sum()\n    {learns}\n"
    tries = "try:\n    learn(batch)\nexcept KeyError:\n    skipped += 1\n"
    rest = "" if told else FORWARD + BACK
    assert len(script(function + steps(tries + rest + "optimizer.step()")).own_catches) == told


def test_quiet_about_an_iterator_that_begins_again(script: Read) -> None:
    step = "try:\n    more = next(others)\nexcept RuntimeError:\n    others = iter(loader)\n"
    assert script(steps(step + FORWARD + BACK)).own_catches == ()
