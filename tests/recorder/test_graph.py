"""The size of the graph of a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddoctor.recorder import graph
from ddoctor.recorder.graph import Graph

MODEL = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def counted(*losses: Tensor) -> tuple[int, int]:
    found = Graph()
    for one in losses:
        found.add(one)
    return found.operations, found.parameters


def test_parameters_are_no_operations() -> None:
    operations, parameters = counted(MODEL(torch.ones(2, 4)).sum())
    assert parameters == 4
    # Two products with their transposed weights, an activation and a sum.
    assert operations == 6


def test_a_loop_over_samples_makes_as_many_more() -> None:
    rows = torch.ones(50, 4)
    one, _ = counted(MODEL(rows).sum())
    each, parameters = counted(torch.stack([MODEL(row) for row in rows]).sum())
    assert each > 40 * one
    assert parameters == 4


def test_the_passes_of_a_step_add_up() -> None:
    losses = [MODEL(torch.ones(2, 4)).sum() for _ in range(2)]
    assert counted(*losses) == (12, 8)


def test_what_needs_no_gradient_has_no_graph() -> None:
    assert counted(torch.ones(2).sum()) == (0, 0)


def test_it_stops_at_a_limit() -> None:
    total = torch.ones((), requires_grad=True)
    for _ in range(graph.MOST + 100):
        total = total + 1
    operations, _ = counted(total)
    assert operations <= graph.MOST


def casts(*contexts: int) -> tuple[int, int, int]:
    """The casts of a pass that enters autocast so often, for so many layer calls each."""
    layer, found = nn.Linear(4, 4), Graph()
    x = torch.ones(2, 4)
    for calls in contexts:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(calls):
                x = layer(x)
    found.add(x.float().sum())
    return found.casts, found.cast_parameters, found.cast_bytes


def test_autocast_casts_each_weight_once() -> None:
    assert casts(5) == (2, 2, (16 + 4) * 4)


def test_a_context_for_each_call_casts_again() -> None:
    assert casts(1, 1, 1, 1, 1) == (10, 2, 5 * (16 + 4) * 4)


def test_without_autocast_nothing_is_cast() -> None:
    found = Graph()
    found.add(MODEL(torch.ones(2, 4)).sum())
    assert (found.casts, found.cast_parameters, found.cast_bytes) == (0, 0, 0)
