"""Runs a graph of torch.compile as its fused kernels do, on fake tensors.

Inductor fuses pointwise operators and reductions, and what only a fused kernel reads is never in
memory. What is written there follows the rule by which torch's partitioner weighs values
(``is_materialized`` in torch/_functorch/partitioners.py): what the graph returns, and what another
operator reads, such as a matrix product.

This is an upper bound. Inductor also reuses the memory of an input for an output, and one kernel
may write several outputs while it reads each input once.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._functorch.partitioners import get_default_op_list
from torch.fx import Graph, GraphModule, Interpreter, Node

from ddoctor.memory_tracking.counting import fused
from ddoctor.memory_tracking.tracker import ShardedTracker, Tracker

KINDS = get_default_op_list()


class Kernels(Interpreter):
    """Runs the operators of one graph, and lets the tracker see what is written to memory."""

    def __init__(self, graph: GraphModule, tracker: Tracker | ShardedTracker) -> None:
        super().__init__(graph)
        self._tracker = tracker
        self._stored = stored(self.graph)
        self._reads = reads(self.graph, self._stored)
        # A kernel reads its inputs when it writes, and not where the graph names them.
        self.user_to_last_uses = _last_uses(self._reads)

    def run_node(self, n: Node) -> Any:
        """Run one operator of the graph."""
        tracker, work = self._tracker, self._tracker.work
        if n.op != "call_function" or not (_fusible(n) or _is_cat(n)):
            return super().run_node(n)
        tracker.seen, tracker.work = n in self._stored, None
        try:
            made = super().run_node(n)
        finally:
            tracker.seen, tracker.work = True, work
        if work is not None and n in self._stored and not _is_view(n):
            read = [self.env[one] for one in self._reads[n] if one in self._stored]
            work.add(tracker.phase, fused(read, made))
        return made


def stored(graph: Graph) -> frozenset[Node]:
    """Return the nodes whose values are in memory; a view is where its base is."""
    needed: set[Node] = set()
    for node in reversed(graph.nodes):
        for user in node.users:
            inside = _fusible(user) and not (_is_view(user) and user in needed)
            if not inside and not _is_cat(user):
                needed.add(node)
    found: set[Node] = set()
    for node in graph.nodes:
        if node in needed or not _fusible(node) or (_is_view(node) and node.args[0] in found):
            found.add(node)
    return frozenset(found)


def reads(graph: Graph, kept: frozenset[Node]) -> Mapping[Node, Iterable[Node]]:
    """Return what each node reads: its inputs, and those of the inputs that are not in memory."""
    found: dict[Node, dict[Node, None]] = {}
    for node in graph.nodes:
        found[node] = {
            each: None
            for one in node.all_input_nodes
            for each in ([one] if one in kept else [one, *found[one]])
        }
    return found


def _last_uses(found: Mapping[Node, Iterable[Node]]) -> dict[Node, list[Node]]:
    last = {one: node for node, ones in found.items() for one in ones}
    uses: dict[Node, list[Node]] = {}
    for one, node in last.items():
        uses.setdefault(node, []).append(one)
    return uses


def _fusible(node: Node) -> bool:
    # The partitioner's list lacks random numbers, since they are never drawn a second time.
    return KINDS.is_fusible(node) or _packet(node) is torch.ops.aten.rand


def _is_view(node: Node) -> bool:
    return KINDS.is_view(node) or node.target is operator.getitem


def _is_cat(node: Node) -> bool:
    """Whether it writes the values of its inputs, which then are nowhere else."""
    return _packet(node) is torch.ops.aten.cat


def _packet(node: Node) -> Any:
    """Return the operator of all overloads."""
    return getattr(node.target, "overloadpacket", None)
