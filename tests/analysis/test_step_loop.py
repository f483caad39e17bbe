"""Work of the training loop in a recorded run, told by where it stands in the loop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddoctor.analysis import unexplained
from ddoctor.analysis.loop_work import Place
from ddoctor.analysis.step_loop import StepLoop
from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.evidence.steps import HotLine, Lines, RankLines
from tests.live_look import block
from tests.training_run import user
from tests.training_steps import USUAL, Work, every, steps, with_more

MAIN = user(60, "fit(loader)", "<module>")
LOOP = block(10, 40, "for texts in loader:")
AROUND = Block(file=MAIN.file, function="<module>", loop=True, text="while True:", line=55, end=70)
MODEL = user(20, "logits = model(ids)", "train")
BACKWARD = user(30, "loss.backward()", "train")
OPTIMIZER = user(31, "optimizer.step()", "train")


def origin(number: int, *, gives: bool = False) -> Origin:
    return Origin(file=MODEL.file, function="train", line=number, end=number, gives=gives)


HEAD = origin(10, gives=True)


def line(
    phase: str,
    samples: int,
    *calls: Frame,
    after: str = "",
    within: Sequence[Block] = (LOOP,),
    origins: Sequence[Origin] = (),
) -> HotLine:
    last = calls[-1]
    return HotLine(
        phase=phase,
        file=last.file,
        line=last.line,
        function=last.function,
        text=last.text,
        samples=samples,
        after=after,
        calls=(MAIN, *calls),
        within=tuple(within),
        origins=tuple(origins),
    )


def loop_with(
    calls: Sequence[Frame],
    *,
    after: str = "optimizer",
    within: Sequence[Block] = (LOOP,),
    origins: Sequence[Origin] = (HEAD, origin(15)),
    loss: Sequence[Origin] = (),
) -> StepLoop:
    """Two ranks that work 0.05 s of each step at these calls, outside of all phases."""
    rows = (
        line("forward", 20, MODEL, within=within, origins=origins),
        line("backward", 30, BACKWARD, within=within, origins=loss),
        line("optimizer", 5, OPTIMIZER, within=within),
        line("rest", 12, *calls, after=after, within=within),
    )
    met = Lines(ranks=tuple(RankLines(rank=rank, samples=67, lines=rows) for rank in (0, 1)))
    return StepLoop.derive(steps(*[with_more("rest", 0.05)] * 2), met)


def at(number: int, text: str, *inner: Frame) -> tuple[Frame, ...]:
    return (user(number, text, "train"), *inner)


INNER = user(3, "row.append(table[word])", "tokenise")


@pytest.mark.parametrize(
    ("calls", "after", "place"),
    [
        (at(15, "ids = tokenise(texts)", INNER), "loader", Place.PREPARES),
        # Of a generator, at the head of the loop.
        (at(10, "for texts in batches():", INNER), "optimizer", Place.FEEDS),
        (at(16, "rate = schedule(step)"), "loader", Place.EARLIER),
        (at(16, "rate = schedule(step)"), "optimizer", Place.EARLIER),
        (at(35, "history = summarise(losses)", INNER), "optimizer", Place.LATER),
        # The loss, and what is done to gradients.
        (at(25, "loss = weigh(logits)", INNER), "forward", Place.WITHIN),
        (at(30, "clip(model)"), "backward", Place.WITHIN),
    ],
)
def test_work_by_its_place(calls: tuple[Frame, ...], after: str, place: Place) -> None:
    loop = loop_with(calls, after=after)
    assert loop.seconds(place) == pytest.approx(0.05, rel=0.3)
    assert sum(loop.seconds(other) for other in Place if other is not place) == 0
    shown = calls[-1] if place is Place.WITHIN else calls[0]
    assert [line.frame for line in loop.lines(place)] == [shown]
    assert [line.inner for line in loop.lines(place)] == [calls[-1] if shown != calls[-1] else None]
    assert loop.longer(0, place) == 0


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("on_after_backward", Place.LATER),
        ("Spread.on_before_optimizer_step", Place.LATER),
        ("onward", Place.WITHIN),
        ("Data.on_after_batch_transfer", Place.WITHIN),
        ("clip_on_cpu", Place.WITHIN),
    ],
)
def test_a_callback_of_a_trainer(function: str, place: Place) -> None:
    inside = user(22, "ordered = gradient.sort()", function)
    loop = loop_with((inside,), after="backward", within=())
    assert loop.seconds(place) == pytest.approx(0.05, rel=0.3)
    assert sum(loop.seconds(other) for other in Place if other is not place) == 0


@pytest.mark.parametrize(
    ("needed", "place"),
    [
        ((HEAD, origin(20)), Place.EARLIER),
        ((HEAD, origin(20), origin(25)), Place.WITHIN),
        ((origin(20),), Place.WITHIN),
    ],
)
def test_what_the_loss_does_not_need(needed: Sequence[Origin], place: Place) -> None:
    """Statements between the model and the backward pass, by what leads to its line."""
    loop = loop_with(at(25, "audit(logits)", INNER), after="forward", loss=needed)
    assert loop.seconds(place) == pytest.approx(0.05, rel=0.3)
    assert sum(loop.seconds(other) for other in Place if other is not place) == 0


@pytest.mark.parametrize("number", [15, 25])
def test_a_loop_that_makes_its_batches_by_lines_of_its_own(number: int) -> None:
    counts = Origin(file=MODEL.file, function="train", line=10, end=10, counts=True)
    loop = loop_with(at(number, "ids = get_batch()", INNER), origins=(origin(number), counts))
    assert loop.seconds(Place.FEEDS) > 0
    head = loop_with(at(10, "for step in tqdm(range(9)):", INNER), origins=(origin(15), counts))
    assert head.seconds(Place.FEEDS) == 0
    assert head.seconds(Place.EARLIER) > 0


@pytest.mark.parametrize("inner", ["json.loads(json.dumps(rows))", "print(rows)"])
def test_what_is_said_within_the_making_of_a_batch(inner: str) -> None:
    calls = at(10, "for texts in batches():", user(3, inner, "batches"))
    assert loop_with(calls).seconds(Place.FEEDS) > 0
    # A line of the loop itself is what it says.
    assert loop_with(at(15, inner)).seconds(Place.FEEDS, Place.PREPARES) == 0


def test_a_rank_that_makes_its_batches_longer() -> None:
    rows = (line("forward", 20, MODEL, origins=(HEAD,)), line("rest", 12, *at(10, "for", INNER)))
    met = Lines(ranks=tuple(RankLines(rank=rank, samples=32, lines=rows) for rank in (0, 1, 2)))
    loop = StepLoop.derive(steps(USUAL, with_more("rest", 0.05), USUAL), met)
    assert loop.longer(1, Place.FEEDS) == pytest.approx(0.05, rel=0.1)
    assert loop.longer(0, Place.FEEDS) <= 0
    assert loop.seconds(Place.FEEDS) < 0.01


@pytest.mark.parametrize(
    "within",
    [
        # The loop is a library's, or the script's around a function for one step.
        (),
        (AROUND,),
    ],
)
def test_a_function_that_runs_once_in_each_step(within: Sequence[Block]) -> None:
    loop = loop_with(at(15, "ids = tokenise(texts)", INNER), after="loader", within=within)
    assert loop.seconds(Place.PREPARES) > 0


def test_work_before_the_loop_is_none_of_the_step() -> None:
    loop = loop_with(at(5, "table = build(words)", INNER))
    assert loop.seconds(Place.UNKNOWN) > 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # On one rank only, and once only.
        (with_more("rest", 0.05), USUAL),
        (with_more("rest", every(30, 2.0)), with_more("rest", every(30, 2.0))),
    ],
)
def test_what_does_not_last_on_all_ranks_is_none(first: Work, second: Work) -> None:
    row = line("rest", 12, *at(15, "ids = tokenise(texts)"), after="loader")
    rows = (line("forward", 20, MODEL), row)
    met = Lines(ranks=tuple(RankLines(rank=rank, samples=32, lines=rows) for rank in (0, 1)))
    loop = StepLoop.derive(steps(first, second), met)
    assert loop.seconds(Place.PREPARES) < 0.01


def test_too_few_steps() -> None:
    assert StepLoop.derive(steps(USUAL, USUAL, count=9), Lines(ranks=())).seconds(*Place) == 0


@pytest.mark.parametrize(("inner", "works"), [("modules/conv.py:_conv_forward", False), ("", True)])
def test_a_model_that_is_not_trained_is_part_of_the_step(inner: str, works: bool) -> None:
    teacher = line("rest", 12, *at(15, "soft = teacher(image)"), after="loader")
    between = msgspec.structs.replace(teacher, samples=9, inner="nn/functional.py:relu")
    rows = (line("forward", 20, MODEL), msgspec.structs.replace(teacher, inner=inner), between)
    met = Lines(ranks=tuple(RankLines(rank=rank, samples=41, lines=rows) for rank in (0, 1)))
    section = steps(*[with_more("rest", 0.05)] * 2)
    loop = StepLoop.derive(section, met)
    assert (loop.seconds(*{*Place} - {Place.MODEL}) > 0.01) is works
    assert (loop.seconds(Place.MODEL) > 0.01) is not works
    assert bool([*unexplained.in_steps(section, met, ())]) is works


COUNTS = user(50, "right, wrong = one.max(-1)", "count")
READS = user(51, "rows[label.item()] += 1", "count")


@pytest.mark.parametrize(
    ("call", "reads", "place"),
    [
        ("count(logits, labels)", READS, Place.LATER),
        ("self.count(logits, labels)", READS, Place.LATER),
        # The loss may be what the function returns, or needs what it computes.
        ("loss = count(logits, labels)", READS, Place.WITHIN),
        ("loss.update(count(logits, labels))", READS, Place.WITHIN),
        ("count(logits, labels)", user(51, "rows[label] += 1", "count"), Place.WITHIN),
    ],
)
def test_a_function_that_reads_values_back_and_returns_nothing(
    call: str, reads: Frame, place: Place
) -> None:
    there = at(25, call)
    rows = (
        line("forward", 20, MODEL),
        line("backward", 30, BACKWARD),
        line("optimizer", 5, OPTIMIZER),
        line("rest", 9, *there, COUNTS, after="forward"),
        line("rest", 3, *there, reads, after="forward"),
    )
    met = Lines(ranks=tuple(RankLines(rank=rank, samples=67, lines=rows) for rank in (0, 1)))
    loop = StepLoop.derive(steps(*[with_more("rest", 0.05)] * 2), met)
    most = max(Place, key=loop.seconds)
    assert most is place
    inner = {one.inner and one.inner.line for one in loop.lines(Place.LATER)}
    assert ({50} <= inner) is (place is Place.LATER)
