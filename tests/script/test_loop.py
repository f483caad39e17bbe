"""What the training loop does in each step."""

from __future__ import annotations

import pytest

from ddoctor.models import Confidence, Severity
from tests.script.conftest import Review
from tests.script.sources import ACCELERATE, CLASSES, STEP, ddp, in_functions

KEPT = "autograd-graph-retained"
SYNC = "gradient-sync-every-microstep"
LOOP = "step-loop-overhead"
FLAGS = "torch-backend-flags-misset"
REENTRANT = "activation-checkpoint-reentrant"


@pytest.mark.parametrize(
    "line", ["total += loss", "losses.append(loss)", "total += loss.mean() / 4", "losses += [loss]"]
)
def test_losses_keep_their_graph(review: Review, line: str) -> None:
    found = review(ddp(before="total = 0\nlosses = []", step=f"{STEP}{line}"))
    assert found.keys() == {KEPT}
    assert (found[KEPT].severity, found[KEPT].confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "detach()" in found[KEPT].fixes[0].paste


def test_losses_keep_their_graph_under_accelerate(review: Review) -> None:
    assert review(ACCELERATE.replace("loss.detach().float()", "loss")).keys() == {KEPT}


@pytest.mark.parametrize(
    "step",
    [
        f"{STEP}total += loss.detach()",
        f"{STEP}total += float(loss)",
        f"{STEP}loss = loss.detach()\ntotal += loss",
        f"{STEP}losses.append(loss.detach())",
        f"{STEP}meter.update(loss)",
        f"{STEP}total += reduce(loss)",
        # Made in the step, or emptied in it.
        f"losses = []\n{STEP}losses.append(loss)",
        # One loss of each of several classifiers, in each step.
        "losses = []\nfor head, one in zip(heads, optimizers):\n    loss = head(batch).sum()\n"
        "    loss.backward()\n    one.step()\n    one.zero_grad()\n    losses.append(loss)",
        f"{STEP}losses.append(loss)\nlosses.clear()",
        # The sum is what backward gets.
        "total = 0\nfor part in batch:\n    loss = model(part)\n    total += loss\n"
        "total.backward()\noptimizer.step()",
        f"{STEP}with torch.no_grad():\n    total += loss",
    ],
)
def test_quiet_where_no_graph_is_kept(review: Review, step: str) -> None:
    assert review(ddp(before="total = 0\nlosses = []", step=step)) == {}


ACCUMULATES = """
loss = model(batch).sum() / 4
loss.backward()
if (number + 1) % 4 == 0:
    optimizer.step()
    optimizer.zero_grad()
"""


def test_gradients_are_reduced_in_every_turn_of_an_inner_loop(review: Review) -> None:
    inner = "for part in batch.chunk(4):\n    loss = model(part).sum() / 4\n    loss.backward()\n"
    found = review(ddp(step=f"{inner}optimizer.step()\noptimizer.zero_grad()"))
    assert found.keys() == {SYNC}
    assert "after the inner loop" in found[SYNC].because
    held = inner.replace("    loss =", "    model.require_backward_grad_sync = last\n    loss =")
    assert review(ddp(step=f"{held}optimizer.step()")) == {}
    # Each turn makes a step.
    assert review(ddp(step=f"{inner}    optimizer.step()")) == {}


@pytest.mark.parametrize(
    ("loop", "last"),
    [
        ("for micro in range(args.accum):", "micro == args.accum - 1"),
        ("for turn in range(total // size):", "turn == (total // size) - 1"),
        ("for at, part in enumerate(parts):", "at == len(parts) - 1"),
        ("for part in parts:", "number == len(parts) - 1  # of: for number, part in enumerate"),
    ],
)
def test_the_last_micro_step_by_the_names_of_the_script(
    review: Review, loop: str, last: str
) -> None:
    inner = f"{loop}\n    loss = model(batch).sum() / 4\n    loss.backward()\n"
    found = review(ddp(step=f"{inner}optimizer.step()\noptimizer.zero_grad()"))
    assert f"\nlast = {last}" in found[SYNC].fixes[0].paste


@pytest.mark.parametrize("style", [str, in_functions])
def test_gradients_are_reduced_in_every_micro_step(review: Review, style: type[str]) -> None:
    found = review(style(ddp(step=ACCUMULATES)))
    assert found.keys() == {SYNC}
    assert found[SYNC].severity is Severity.WARNING
    assert "last = (number + 1) % 4 == 0" in found[SYNC].fixes[0].paste


@pytest.mark.parametrize(
    "step",
    [
        STEP,
        ACCUMULATES.replace(
            "loss.backward()",
            "with nullcontext() if last else model.no_sync():\n    loss.backward()",
        ),
        f"model.require_backward_grad_sync = last\n{ACCUMULATES}",
        # By a function of a module that is not read.
        ACCUMULATES.replace(
            "loss.backward()", "with misc.ddp_sync(model, last):\n    loss.backward()"
        ),
        # The generator, in one step of four.
        "loss_d.backward()\nopt_d.step()\n"
        "if number % 4 == 0:\n    loss_g.backward()\n    opt_g.step()",
        # Skipped steps are no accumulation.
        ACCUMULATES.replace("(number + 1) % 4 == 0", "torch.isfinite(loss)"),
    ],
)
def test_quiet_where_nothing_is_reduced_in_vain(review: Review, step: str) -> None:
    assert review(ddp(step=step)) == {}


def test_quiet_where_a_framework_accumulates(review: Review) -> None:
    assert review(ddp(head="import deepspeed", step=ACCUMULATES)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "x = loss.item()",
        "losses.append(loss.detach().cpu())",
        "torch.cuda.synchronize()",
        "torch.cuda.empty_cache()",
    ],
)
def test_what_each_step_calls_is_noted(review: Review, line: str) -> None:
    found = review(ddp(step=f"{STEP}{line}"))
    assert found[LOOP].severity is Severity.NOTE
    assert line in found[LOOP].because
    for quiet in (f"if number % 50 == 0:\n    {line}", f"if last:\n    {line}"):
        assert review(ddp(step=f"{STEP}{quiet}")) == {}
    assert review(ddp(epoch=line)) == {}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("running += loss.item()", "running += loss.detach()"),
        ("total += loss.item() * 8", "total += loss.detach() * 8"),
        ("losses.append(loss.item())", "losses.append(loss.detach())"),
    ],
)
def test_a_sum_of_all_steps_stays_one(review: Review, line: str, kept: str) -> None:
    (fix,) = review(ddp(step=f"{STEP}{line}"))[LOOP].fixes
    assert fix.paste.startswith(f"{kept}  # in each step")
    assert "if step % 100 == 0:" in fix.paste


def test_anomaly_detection_is_left_on(review: Review) -> None:
    on = "torch.autograd.set_detect_anomaly(True)\n"
    assert review(ddp(head=on))[LOOP].severity is Severity.WARNING
    assert LOOP in review(CLASSES.replace("import torch\n", f"import torch\n{on}"))
    for quiet in (on.replace("True", "False"), on.replace("True", "args.debug")):
        assert review(ddp(head=quiet)) == {}
    assert review(ddp(head=f"if debug:\n    {on}")) == {}


def test_deterministic_mode_is_noted(review: Review) -> None:
    on = "torch.backends.cudnn.deterministic = True"
    assert review(ddp(head=on))[FLAGS].severity is Severity.NOTE
    assert review(ddp(head="torch.use_deterministic_algorithms(True)"))[FLAGS].fixes
    assert review(ddp(head=f"if args.seed is not None:\n    {on}")) == {}
    assert review(ddp(head="torch.backends.cudnn.benchmark = True")) == {}


BLOCKS = "from torch.utils.checkpoint import checkpoint\n"


def test_reentrant_blocks_under_a_search_for_parameters(review: Review) -> None:
    searching = ddp(head=BLOCKS, step=STEP.replace("model(batch)", BLOCK)).replace(
        ".to(local_rank))", ".to(local_rank), find_unused_parameters=True)"
    )
    found = review(searching)
    assert found.keys() == {REENTRANT}
    assert "use_reentrant=False" in found[REENTRANT].fixes[0].paste
    for one, other in (
        ("use_reentrant=True", "use_reentrant=False"),
        ("find_unused_parameters=True", "find_unused_parameters=False"),
        ("find_unused_parameters=True", "find_unused_parameters=True, static_graph=True"),
        ("use_reentrant=True", "use_reentrant=args.reentrant"),
    ):
        assert REENTRANT not in review(searching.replace(one, other))


ENABLED = "net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': True})"


@pytest.mark.parametrize(
    "line",
    [
        ENABLED,
        ENABLED.replace("'", '"'),
        # Too long to be quoted as a whole.
        ENABLED.replace("(gradient", f"(other={'x' * 300!r}, gradient"),
    ],
)
def test_the_fix_of_reentrant_blocks(review: Review, line: str) -> None:
    searches = ".to(local_rank), find_unused_parameters=True)"
    found = review(ddp(head=line).replace(".to(local_rank))", searches))
    paste = found[REENTRANT].fixes[0].paste.replace("'", '"')
    assert '{"use_reentrant": False}' in paste
    assert "True" not in paste


def test_a_static_graph_needs_no_search(review: Review) -> None:
    wrap = ".to(local_rank), find_unused_parameters=True, static_graph=True)"
    found = review(ddp().replace(".to(local_rank))", wrap))
    assert found.keys() == {"find-unused-parameters-unneeded"}
    for other in ("static_graph=True", "find_unused_parameters=True", "find_unused_parameters=x"):
        assert review(ddp().replace(".to(local_rank))", f".to(local_rank), {other})")) == {}


def test_each_step_prints_on_all_ranks(review: Review) -> None:
    found = review(ddp(step=f"{STEP}print(loss)"))
    assert found.keys() == {LOOP}
    assert (found[LOOP].severity, "(`print(loss)`)" in found[LOOP].because) == (Severity.NOTE, True)
    for quiet in (
        "if number % 50 == 0:\n    print(loss)",
        "if dist.get_rank() == 0:\n    print(number)",
        "if dist.get_rank() == 0 and number % 50 == 0:\n    print(loss)",
        "shows = dist.get_rank() == 0 and number % 50 == 0\nif shows:\n    print(loss)",
        "if number % 50:\n    continue\nif dist.get_rank() == 0:\n    print(loss)",
        "print = log\nprint(loss)",
    ):
        assert review(ddp(step=f"{STEP}{quiet}")) == {}
    assert review(ddp(epoch="print(loss)")) == {}


@pytest.mark.parametrize("test", ["dist.get_rank() == 0", "rank == 0", "args.is_main_process"])
def test_each_step_prints_the_loss_on_one_rank(review: Review, test: str) -> None:
    found = review(ddp(step=f"{STEP}if {test}:\n    print('loss', loss)"))
    assert found.keys() == {LOOP}
    assert "on rank 0: the host waits" in found[LOOP].because


BLOCK = "checkpoint(block, batch, use_reentrant=True)"
