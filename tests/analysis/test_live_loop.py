"""Work of the training loop in a live run, told by where its line stands in the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from ddoctor.analysis import live_loop
from ddoctor.analysis.live_ranks import OWN_LOADER
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_lines import COLLECTS
from ddoctor.evidence.frames import Block, Frame, Origin
from ddoctor.evidence.live import Activity, LiveRank
from tests.live_look import SECONDS, block, look
from tests.training_run import user

LOOP = block(10, 40, "for texts in loader:")
MAIN = user(60, "train()", "<module>")
FORWARD = user(20, "logits = model(ids)", "train")
BACKWARD = user(30, "loss.backward()", "train")
STEP: tuple[tuple[str, int, tuple[Frame, ...]], ...] = (
    ("forward", 20, (MAIN, FORWARD, user(5, "return self.body(x)", "Net.forward"))),
    ("backward", 30, (MAIN, BACKWARD)),
    ("optimizer", 8, (MAIN, user(31, "optimizer.step()", "train"))),
)
"""A step of a loop: activities, their samples and the user's frames."""


def origin(number: int, *, gives: bool = False) -> Origin:
    return Origin(file=FORWARD.file, function="train", line=number, end=number, gives=gives)


def rank(
    number: int,
    *work: tuple[int, tuple[Frame, ...]],
    visits: int = 20,
    loop: Block = LOOP,
    origins: tuple[Origin, ...] = (origin(10, gives=True), origin(15)),
    step: Sequence[tuple[str, int, tuple[Frame, ...]]] = STEP,
) -> LiveRank:
    """A rank that trains, and works at these lines outside the model."""
    rows = (*step, *(("rest", samples, calls) for samples, calls in work))
    return LiveRank(
        rank=number,
        pid=100 + number,
        state="running",
        age_seconds=600.0,
        cpu_seconds=9.0,
        main_cpu_seconds=SECONDS,
        asleep=0.0,
        resident=900.0,
        samples=sum(samples for _, samples, _ in rows),
        stack=(MAIN, FORWARD),
        activities=tuple(
            Activity(
                name=name,
                samples=samples,
                visits=visits,
                calls=calls,
                entered=min(2, len(calls)),
                within=(loop,),
                origins=origins if name == "forward" else (),
            )
            for name, samples, calls in rows
        ),
    )


def at(line: int, text: str, *inner: Frame) -> tuple[Frame, ...]:
    return (MAIN, user(line, text, "train"), *inner)


INNER = user(3, "row.append(table[word])", "tokenise")


@pytest.mark.parametrize(
    "calls",
    [
        at(15, "ids = tokenise(texts)", INNER),
        at(15, "ids = torch.tensor([table[word] for word in texts])"),
        at(15, "ids = torch.tensor([text.item() for text in texts])"),
    ],
)
def test_before_the_model(calls: tuple[Frame, ...]) -> None:
    live = LiveState.derive((look(*(rank(one, (42, calls)) for one in (0, 1))),))
    work = live_loop.preparing(live)
    assert work is not None
    assert work.share == pytest.approx(0.42)
    assert [line.frame for line in work.lines] == [calls[1]]
    assert live_loop.around(live) is None


@pytest.mark.parametrize("name", ["forward", "evaluation"])
@pytest.mark.parametrize(("function", "found"), [("tokenise", False), ("embed", True)])
def test_work_that_needs_the_model_is_none_for_workers(
    name: str, function: str, found: bool
) -> None:
    """Such as an environment that the policy plays in: the function there calls the model, too."""
    calls = at(15, "ids = tokenise(texts)", INNER)
    plays = (*calls[:2], user(4, "action = policy(state)", function), user(5, "return x", "Net"))
    rows = [rank(one, (42, calls), step=(*STEP, (name, 5, plays))) for one in (0, 1)]
    work = live_loop.preparing(LiveState.derive((look(*rows),)))
    assert (work is not None) is found


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("logits = model(tokenise(texts))", 0.42),
        ("loss = criterion(model(ids), targets=tokenise(texts))", 0.42),
        # It may run after the model.
        ("logits, ids = model(ids), tokenise(texts)", None),
        ("loss = tokenise(model(texts))", None),
        ("with torch.autocast('cpu'): (", None),
    ],
)
def test_in_the_line_that_calls_the_model(text: str, share: float | None) -> None:
    line = user(20, text, "train")
    step = (("forward", 20, (MAIN, line, user(5, "return x", "Net.forward"))), *STEP[1:])
    live = LiveState.derive((look(rank(0, (42, (MAIN, line, INNER)), step=step)),))
    work = live_loop.preparing(live)
    assert (work.share if work is not None else None) == share


@pytest.mark.parametrize(
    ("beside", "known", "share"),
    [
        (True, True, 0.42),
        # The loss may need it, or the way from the batch to the loss is not known.
        (False, True, None),
        (True, False, None),
    ],
)
def test_between_the_model_and_the_backward_pass(
    beside: bool, known: bool, share: float | None
) -> None:
    calls = at(25, "summarise(logits)", user(7, "table[value] += 1", "summarise"))
    step = [
        (name.replace("backward", "backward-or-wait"), samples, calls)
        for name, samples, calls in STEP
    ]
    made = (origin(10, gives=known), origin(20), *(() if beside else (origin(25),)))
    row = rank(0, (42, calls), step=step)
    activities = tuple(
        replace(one, origins=made) if one.name == "backward-or-wait" else one
        for one in row.activities
    )
    live = LiveState.derive((look(replace(row, activities=activities)),))
    work = live_loop.around(live)
    assert (work.share if work is not None else None) == share


def test_after_the_step() -> None:
    calls = at(35, "history = summarise(values)", user(7, "table[value] += 1", "summarise"))
    live = LiveState.derive((look(*(rank(one, (42, calls)) for one in (0, 1))),))
    work = live_loop.around(live)
    assert work is not None
    assert [line.frame for line in work.lines] == [calls[1]]
    assert live_loop.preparing(live) is None


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("for texts in loader:", "refresh(state)"),
        ("for step, texts in enumerate(loader):", "adjust(optimizer, step)"),
        ("for step, texts in enumerate(loader):", "kept.append(torch.ones(size))"),
        ("while True:", "gc.collect()"),
        ("for texts in loader:", "print(texts.shape)"),
    ],
)
def test_before_the_model_but_not_on_the_batch(head: str, line: str) -> None:
    loop = block(10, 40, head)
    seen = rank(0, (42, at(16, line)), loop=loop)
    live = LiveState.derive((look(seen),))
    work = live_loop.around(live)
    assert work is not None
    assert work.lines[0].frame.text == line
    assert live_loop.preparing(live) is None


def test_a_library_that_collects_garbage_works_on_no_batch() -> None:
    calls = at(16, "texts, loss = release_memory(texts, loss)")
    row = rank(0, (42, calls))
    activities = tuple(
        replace(one, makes=COLLECTS) if one.name == "rest" else one for one in row.activities
    )
    live = LiveState.derive((look(replace(row, activities=activities)),))
    work = live_loop.around(live)
    assert work is not None
    assert work.lines[0].frame == calls[1]
    assert work.lines[0].does == COLLECTS
    assert live_loop.preparing(live) is None


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        # A generator at the head of the loop, and lines of a loop that counts.
        (10, (origin(10, gives=True),)),
        (15, (origin(15), origin(16))),
    ],
)
def test_batches_without_a_loader(line: int, taken: tuple[Origin, ...]) -> None:
    calls = at(line, "x = get_batch()", user(3, "time.sleep(0.01)", "batches"))
    live = LiveState.derive((look(rank(0, (42, calls), origins=taken)),))
    assert live.ranks[0].seen.share(OWN_LOADER) == pytest.approx(0.42)
    assert live_loop.preparing(live) is None
    assert live_loop.around(live) is None
    # Beside a DataLoader it is work on what that gives.
    step = (*STEP, ("loader", 5, (MAIN, user(10, "for x in clean(loader):", "train"))))
    live = LiveState.derive((look(rank(0, (42, calls), origins=taken, step=step)),))
    assert live.ranks[0].seen.share(OWN_LOADER) == 0
    assert live_loop.preparing(live) is not None


def quiet() -> Iterator[tuple[LiveRank, ...]]:
    prepares = at(15, "ids = tokenise(texts)", INNER)
    # The loss, between the model and the backward pass; a line of the step itself.
    yield (rank(0, (42, at(25, "loss = contrast(logits)", user(8, "total += a * b", "contrast")))),)
    yield (rank(0, (42, (MAIN, BACKWARD))),)
    # Outside of the loop; another function; once; too little; on one rank only.
    yield (rank(0, (42, (MAIN, user(5, "ids = tokenise(texts)", "train")))),)
    yield (rank(0, (42, (user(70, "serve()", "<module>"), INNER))),)
    yield (rank(0, (42, prepares), visits=1),)
    yield (rank(0, (4, prepares)), rank(1, (4, prepares)))
    yield (rank(0, (42, prepares)), rank(1))


@pytest.mark.parametrize("ranks", [*quiet()])
def test_quiet(ranks: tuple[LiveRank, ...]) -> None:
    live = LiveState.derive((look(*ranks),))
    assert live_loop.preparing(live) is None
    assert live_loop.around(live) is None
