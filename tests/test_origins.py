"""Which statements of a loop make the batch that the model's line reads."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

import pytest

from ddoctor import blocks
from ddoctor.evidence.frames import Frame
from ddoctor.origins import origins


def told(source: str, *functions: str) -> tuple[list[str], list[str]]:
    """The statements found, and those of them that take a batch; lines with ``HERE`` are called."""
    lines = dedent(source).strip().splitlines()
    nodes = blocks.parsed(lines)
    called = [number for number, text in enumerate(lines, 1) if "HERE" in text]
    frames = [
        Frame(file="train.py", line=line, function=function, of_user=True)
        for line, function in zip(called, functions or ["<module>"], strict=True)
    ]
    found = origins(frames, lambda _: nodes)
    text = {one: lines[one.line - 1].strip() for one in found}
    return [text[one] for one in found], [text[one] for one in found if one.gives]


@pytest.mark.parametrize(
    ("source", "expected", "gives"),
    [
        (
            """
            for texts in loader:
                step += 1
                ids = tokenise(texts)
                loss = model(ids)  # HERE
                loss.backward()
            """,
            ["ids = tokenise(texts)", "for texts in loader:"],
            ["for texts in loader:"],
        ),
        # By an iterator, through an item of a dictionary.
        (
            """
            while True:
                batch = next(batches)
                rate = schedule(step)
                batch["x"] = batch["x"].to(device)
                out = model(batch["x"], batch["y"])  # HERE
            """,
            ["batch = next(batches)", 'batch["x"] = batch["x"].to(device)'],
            ["batch = next(batches)"],
        ),
        # A function may change the batch that it gets; what the head of the loop reads is none.
        (
            """
            for step, (x, y) in enumerate(islice(loader, args.steps)):
                warm(args.seconds)
                augment(x)
                out = model(x)  # HERE
            """,
            ["for step, (x, y) in enumerate(islice(loader, args.steps)):", "augment(x)"],
            ["for step, (x, y) in enumerate(islice(loader, args.steps)):"],
        ),
        # Drawn by hand; the loop counts.
        (
            """
            for step in range(steps):
                rows = torch.randint(len(table), (8,))
                x, y = table[rows], labels[rows]
                with autocast(enabled=half):
                    loss = loss_of(model(x), y)  # HERE
            """,
            ["x, y = table[rows], labels[rows]", "rows = torch.randint(len(table), (8,))"],
            [],
        ),
        # The next batch, after the model; of several lines.
        (
            """
            batch = get()
            for step in range(steps):
                loss = model(batch)  # HERE
                batch = get(
                    step)
            """,
            ["batch = get(", "for step in range(steps):"],
            [],
        ),
        # Parts of a batch: also what makes the whole one.
        (
            """
            for epoch in range(9):
                loader = make(epoch)
                for batch in loader:
                    batch = clean(batch)
                    for part in batch.chunk(4):
                        model(part)  # HERE
            """,
            ["for part in batch.chunk(4):", "for batch in loader:", "batch = clean(batch)"],
            ["for part in batch.chunk(4):", "for batch in loader:"],
        ),
        ("while (x := next(it, None)) is not None:\n    model(x)  # HERE", *[["while (x"]] * 2),
        # Functions that get it before the model.
        (
            """
            for batch in loader:
                rate = schedule(step)
                normalise(batch)
                model(batch)  # HERE
                metrics.update(batch)
            """,
            ["for batch in loader:", "normalise(batch)"],
            ["for batch in loader:"],
        ),
        # What is not repeated with it.
        ("x = load()\nmodel(x)  # HERE", [], []),
        ("x = load()\nfor step in range(9):\n    model(x)  # HERE", [], []),
    ],
)
def test_what_makes_the_batch(source: str, expected: Sequence[str], gives: Sequence[str]) -> None:
    found, taken = told(source)
    assert len(found) == len(expected)
    assert all(any(one.startswith(text) for one in found) for text in expected)
    assert len(taken) == len(gives)
    assert all(any(one.startswith(text) for one in taken) for text in gives)


def test_a_function_without_a_batch_ends_the_way() -> None:
    source = """
    for epoch in loader:
        step(epoch)  # HERE
    def step(number):
        x = get_batch()
        return model(x)  # HERE
    """
    assert told(source, "<module>", "step") == (["x = get_batch()"], [])


def test_arguments_lead_to_the_caller() -> None:
    source = """
    class Trainer:
        def fit(self):
            for x in self.stream:
                y = refine(x)
                self.step(y)  # HERE
                self.log(x)

        def step(self, y):
            self.z = y + 1
            return self.model(self.z)  # HERE
    """
    found, taken = told(source, "fit", "step")
    assert found == [
        "self.z = y + 1",
        "def step(self, y):",
        "y = refine(x)",
        "for x in self.stream:",
    ]
    assert taken == ["for x in self.stream:"]


def test_a_statement_of_a_thousand_terms() -> None:
    source = f"for x in loader:\n    y = {' + '.join(['x'] * 1000)}\n    model(y)  # HERE"
    found, taken = told(source)
    assert len(found) == 2
    assert taken == ["for x in loader:"]


def test_what_cannot_be_parsed_has_none() -> None:
    assert told("for x in loader:\n    model(x  # HERE") == ([], [])


def test_of_a_function_that_gets_the_batch_only_the_head_counts() -> None:
    lines = [
        "for x in loader:",
        "    step(x)",
        "def step(x,",
        "        y=0):",
        "    model(x)",
        "    log()",
    ]
    nodes = blocks.parsed(lines)
    frames = [
        Frame(file="train.py", line=line, function=function, of_user=True)
        for line, function in ((2, "<module>"), (5, "step"))
    ]
    assert [(one.line, one.end) for one in origins(frames, lambda _: nodes)] == [(3, 4), (1, 1)]
