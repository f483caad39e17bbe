"""Training loops that make, zero, add or leave something at the wrong place."""

from __future__ import annotations

from textwrap import indent

import pytest

from tests.script.conftest import Read
from tests.script.sources import SET_UP, ddp

PASSES = "loss = model(batch).sum()\nloss.backward()\n"
ZERO, STEP = "optimizer.zero_grad()\n", "optimizer.step()\n"
USUAL = ZERO + PASSES + STEP
ADAM = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
WITH_ADAM = SET_UP + ADAM
HOOK = "handle = model.register_forward_hook(print)\n"


@pytest.mark.parametrize("made", [ADAM, ADAM.replace("AdamW", "SGD").replace("lr=", "momentum=")])
def test_an_optimizer_of_each_step(script: Read, made: str) -> None:
    (line,) = script(ddp(step=ZERO + made + PASSES + STEP)).remade_optimizers
    assert line.text == made.strip()


@pytest.mark.parametrize(
    "step",
    [
        USUAL,
        # It keeps nothing.
        ADAM.replace("AdamW", "SGD") + USUAL,
        "if number == 100:\n" + indent(ADAM, "    ") + USUAL,
        # Each task has its own copy.
        f"model = copy.deepcopy(template)\n{ADAM}{USUAL}",
        f"model.load_state_dict(first)\n{ADAM}{USUAL}",
        # An inner loop of several steps.
        f"{ADAM}for part in batch:\n" + indent(USUAL, "    "),
        f"other = torch.optim.AdamW([noise])\n{USUAL}",
    ],
)
def test_an_optimizer_that_may_be_made_there(script: Read, step: str) -> None:
    assert script(ddp(step=step)).remade_optimizers == ()


def test_an_optimizer_of_each_epoch(script: Read) -> None:
    assert script(ddp(before=ADAM, step=USUAL)).remade_optimizers == ()


@pytest.mark.parametrize(
    "step",
    [
        HOOK + USUAL,
        "for layer in model.children():\n    layer.register_forward_hook(f)\n" + USUAL,
        "if number % 20 == 0:\n" + indent(HOOK, "    ") + USUAL,
    ],
)
def test_a_hook_of_each_step(script: Read, step: str) -> None:
    (line,) = script(ddp(step=step)).repeated_hooks
    assert "register_forward_hook" in line.text


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (HOOK, USUAL),
        ("", f"{HOOK}{USUAL}handle.remove()"),
        ("", "if number == 0:\n" + indent(HOOK, "    ") + USUAL),
        ("", f"probe = Probe(model)\nprobe.register_forward_hook(print)\n{USUAL}"),
        ("", f"{PASSES}batch.register_hook(print)\n{ZERO}"),
    ],
)
def test_a_hook_that_may_be_there(script: Read, before: str, step: str) -> None:
    assert script(ddp(before=before, step=step)).repeated_hooks == ()


@pytest.mark.parametrize("step", [PASSES + ZERO + STEP, ZERO + PASSES + ZERO + "log()\n" + STEP])
def test_gradients_that_are_zeroed_before_the_step(script: Read, step: str) -> None:
    (one,) = script(ddp(step=step)).zeroed_early
    assert one.at.text == ZERO.strip()
    assert one.step.text == STEP.strip()


@pytest.mark.parametrize(
    "step",
    [
        USUAL,
        PASSES + STEP + ZERO,
        # Two models in turns.
        f"{PASSES}{ZERO}other(batch).backward()\n{STEP}",
        f"{PASSES}other.zero_grad()\n{STEP}",
        f"{PASSES}{ZERO}optimizer.step(closure)",
        f"{PASSES}if number % 4 == 0:\n    {ZERO}{STEP}",
        f"{ZERO}{STEP}{PASSES}",
    ],
)
def test_gradients_that_are_zeroed_elsewhere(script: Read, step: str) -> None:
    assert script(ddp(step=step)).zeroed_early == ()


def test_a_function_between_that_passes_back(script: Read) -> None:
    head = "def again(model, batch):\n    model(batch).sum().backward()"
    step = f"{PASSES}{ZERO}again(model, batch)\n{STEP}"
    assert script(ddp(head=head, step=step)).zeroed_early == ()


def test_gradients_that_no_line_zeroes(script: Read) -> None:
    line = script(ddp(set_up=WITH_ADAM, step=PASSES + STEP)).never_zeroed
    assert line is not None
    assert line.text == STEP.strip()


def test_a_function_of_the_script_that_is_called_step(script: Read) -> None:
    head = f"def step(batch):\n{indent(PASSES + ZERO + STEP, '    ')}"
    assert script(ddp(set_up=WITH_ADAM, head=head, step="step(batch)")).never_zeroed is None


@pytest.mark.parametrize(
    "step",
    [
        USUAL,
        f"{PASSES}{STEP}model.zero_grad(set_to_none=True)",
        f"{PASSES}{STEP}for one in model.parameters():\n    one.grad = None",
        f"{PASSES}engine.step()",
        f"{PASSES}scheduler.step()",
        "loss = train(model, batch)",
    ],
)
def test_gradients_that_something_zeroes(script: Read, step: str) -> None:
    assert script(ddp(set_up=WITH_ADAM, step=step)).never_zeroed is None


NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop = torch.nn.Linear(8, 8), torch.nn.Dropout(0.1)
"""
VALIDATE = """
def validate(net):
    net.eval()
    with torch.no_grad():
        return net(test)
"""


@pytest.mark.parametrize(
    ("head", "epoch", "step"),
    [
        (NET, "model.eval()", USUAL),
        (NET, "model.module.eval()", USUAL),
        (NET, "", USUAL + "if number % 100 == 0:\n    model.eval()"),
        (NET + VALIDATE, "validate(model)", USUAL),
    ],
)
def test_a_model_that_stays_in_evaluation_mode(
    script: Read, head: str, epoch: str, step: str
) -> None:
    (line,) = script(ddp(set_up=WITH_ADAM, head=head, epoch=epoch, step=step)).left_in_evaluation
    assert line.text.endswith(".eval()")


@pytest.mark.parametrize(
    ("head", "before", "epoch"),
    [
        (NET, "", ""),
        # No layer for which it matters.
        ("", "", "model.eval()"),
        (NET, "model.train()", "model.eval()"),
        (NET, "", "model.eval()\nmodel.train()"),
        (NET, "", "teacher.eval()"),
        (NET, "", "model.body.eval()"),
        (f"{NET}{VALIDATE}    net.train()", "", "validate(model)"),
        (f"{NET}def one_epoch(net):\n    net.train()", "one_epoch(model)", "model.eval()"),
    ],
)
def test_a_model_that_trains_again(script: Read, head: str, before: str, epoch: str) -> None:
    found = script(ddp(set_up=WITH_ADAM, head=head, before=before, step=USUAL, epoch=epoch))
    assert found.left_in_evaluation == ()


def test_a_model_that_is_evaluated_after_the_training(script: Read) -> None:
    assert (
        script(ddp(set_up=WITH_ADAM, head=NET, step=USUAL) + "\nmodel.eval()").left_in_evaluation
        == ()
    )


EVALUATE = """
def evaluate(net, batches):
{first}
    with torch.no_grad():
        for batch in batches:
            right = net(batch)
    return right
"""


def evaluated(first: str = "    right = 0", net: str = NET, of: str = "model, held") -> str:
    """A script that trains, and evaluates in each epoch."""
    held = "held = DataLoader(data, 8)\n"
    head = net + EVALUATE.format(first=first)
    return ddp(set_up=WITH_ADAM + held, head=head, step=USUAL, epoch=f"evaluate({of})")


def test_an_evaluation_in_training_mode(script: Read) -> None:
    (line,) = script(evaluated()).evaluated_in_training_mode
    assert line.text == "right = net(batch)"


@pytest.mark.parametrize(
    "source",
    [
        evaluated("    net.eval()"),
        evaluated("    net.train(False)"),
        evaluated(net=""),
        evaluated(of="teacher, held"),
        evaluated(of="model, range(10)"),
        ddp(set_up=WITH_ADAM, head=NET, step=USUAL),
    ],
)
def test_quiet_about_an_evaluation(script: Read, source: str) -> None:
    assert script(source).evaluated_in_training_mode == ()


NO_SYNC = "with model.no_sync():\n    loss = model(batch).sum()\n    loss.backward()\n"


def test_gradients_that_no_rank_ever_gets(script: Read) -> None:
    line = script(ddp(set_up=WITH_ADAM, step=ZERO + NO_SYNC + STEP)).never_synced
    assert line is not None
    assert line.text == "loss.backward()"


@pytest.mark.parametrize(
    "step",
    [
        USUAL,
        NO_SYNC + USUAL,
        ZERO
        + NO_SYNC.replace("model.no_sync()", "nullcontext() if last else model.no_sync()")
        + STEP,
        "if number % 4:\n" + indent(NO_SYNC, "    ") + "else:\n" + indent(PASSES, "    ") + STEP,
        ZERO + NO_SYNC + "for p in model.parameters():\n    dist.all_reduce(p.grad)\n" + STEP,
    ],
)
def test_quiet_about_gradients_that_they_get(script: Read, step: str) -> None:
    assert script(ddp(set_up=WITH_ADAM, step=step)).never_synced is None
