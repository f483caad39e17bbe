"""Which statements store a loss with its graph."""

from __future__ import annotations

from textwrap import dedent

import pytest

from ddoctor.kept_graphs import storing

LOOP = """
    def train(model, loader, optimizer, accelerator, scaler):
        history, total, sums = [], 0, {}
        for step, (inputs, labels) in enumerate(loader):
            output = model(inputs)
            loss = criterion(output, labels)
            BACK
            optimizer.step()
            STORES
"""
WAYS = ("loss.backward()", "accelerator.backward(loss)", "scaler.scale(loss / 4).backward()")


def lines(back: str, stores: str) -> list[tuple[int, str]]:
    return list(storing(dedent(LOOP).replace("BACK", back).replace("STORES", stores).splitlines()))


@pytest.mark.parametrize("back", WAYS)
@pytest.mark.parametrize(
    "stores",
    [
        "history.append(loss)",
        "self.losses.append((step, loss))",
        "total += loss",
        "total = total + loss * 2",
        "sums[step] = loss",
        "meter.update(loss, len(inputs))",
    ],
)
def test_what_keeps_the_graph(back: str, stores: str) -> None:
    assert lines(back, stores) == [(9, "train")]


@pytest.mark.parametrize(
    "stores",
    [
        "history.append(loss.item())",
        "history.append(loss.detach().cpu())",
        "total += float(loss)",
        "total += loss.item() * len(inputs)",
        "sums[step] = loss.data",
        "history.append(labels)",
        "print(loss)",
        "loss = loss + 1",
        "best = loss",
    ],
)
def test_what_keeps_none(stores: str) -> None:
    if stores == "loss = loss + 1":
        # It is the loss itself.
        assert lines("other.backward()", stores) == []
    else:
        assert lines("loss.backward()", stores) == []


def test_a_loop_without_a_function() -> None:
    source = "for x in data:\n    loss = f(x)\n    loss.backward()\n    kept.append(loss)\n"
    assert storing(source.splitlines()) == [(4, "<module>")]


def test_a_file_that_is_no_python() -> None:
    assert storing(["loss.backward("]) == ()
