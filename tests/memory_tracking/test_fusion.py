"""What fused kernels write to memory, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx

from ddoctor.memory_tracking.fusion import reads, stored

X = torch.zeros(8, 8)


def graph(function: Callable[..., Any], *inputs: Tensor) -> Graph:
    found: Graph = make_fx(function)(*inputs).graph
    return found


def written(function: Callable[..., Any], *inputs: Tensor) -> set[str]:
    """Names of what operators write, without the results of views."""
    found = graph(function, *inputs)
    return {one.name for one in stored(found) if one.op == "call_function"}


def test_only_the_end_of_a_chain_is_written() -> None:
    assert written(lambda x: (x.sin().cos() * 2).exp(), X) == {"exp"}


def test_what_a_matrix_product_reads_and_makes_is_written() -> None:
    assert written(lambda x: (x.sin().cos() @ x).exp(), X) == {"cos", "mm", "exp"}


def test_a_value_is_written_for_what_reads_its_view() -> None:
    assert written(lambda x: (x.sin().t() @ x).exp(), X) == {"sin", "t", "mm", "exp"}


def test_a_view_of_a_value_in_no_memory_is_in_none() -> None:
    assert written(lambda x: x.sin().t().exp(), X) == {"exp"}


def test_a_reduction_is_fused_with_what_is_around() -> None:
    assert written(lambda x: x.exp() / x.exp().sum(-1, keepdim=True), X) == {"div"}


def test_cat_writes_what_it_joins() -> None:
    assert written(lambda x: torch.cat([x.neg(), x]).exp(), X) == {"cat", "exp"}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, y: (x.sin() + y).exp(), {"x_1", "y_1"}),
        (lambda x, y: ((x @ y).sin() + y).exp(), {"mm", "y_1"}),
    ],
)
def test_a_kernel_reads_what_its_chain_reads(
    function: Callable[..., Any], expected: set[str]
) -> None:
    found = graph(function, X, X.clone())
    kept = stored(found)
    last = next(one for one in found.nodes if one.name == "exp")
    assert {one.name for one in reads(found, kept)[last] if one in kept} == expected
