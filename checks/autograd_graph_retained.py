"""Losses or metrics keep their autograd graph, so memory grows with every step.

A tensor that requires a gradient holds the graph behind it. Before backward has run, the graph also
holds the activations of the whole forward pass. ``total += loss`` or ``history.append(loss)`` keeps
one such graph per step. Memory grows until the run is out of memory, often after an epoch or two.

Symptoms: allocated memory grows by the same amount in every step, on the GPU or on the host.

To fix it, store ``loss.detach()`` instead of ``loss``, and evaluate under ``torch.no_grad()``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.analysis.trend import FEWEST_STEPS, trend
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("host-memory-leak", "memory-headroom-low", "cuda-oom-fragmentation")

# A loop that keeps one tensor per step holds as many as there were steps. Half of that also covers
# a loop that keeps one in every second step. A healthy loop holds a few, however many steps it ran.
OF_THE_STEPS = 0.5
# Growth must exceed the variation between steps by this factor.
OVER_SWING = 5.0

_NOT_ITEM = "do not use .item() instead: the host then waits for the GPU in every step"


def kept(memory: MemoryOverTime) -> Iterator[Finding]:
    ranks = [rank for rank in memory.ranks if _held(rank) or _chained(rank)]
    # A constant count may belong to the model: weight_norm keeps a tensor with a graph per layer.
    # Only two counts, or memory that grows, prove growth.
    growing = [rank for rank in ranks if _counted_twice(rank) or _growth(rank)]
    if growing:
        yield _finding(growing)


def _judged(rank: Growth) -> int:
    return rank.steps[-1] - rank.steps[0] if rank.steps else 0


def _tensors(rank: Growth) -> int:
    return (rank.graph_tensors or 0) - (rank.graph_tensors_before or 0)


def _additions(rank: Growth) -> int:
    return (rank.graph_depth or 0) - (rank.graph_depth_before or 0)


def _held(rank: Growth) -> bool:
    return _tensors(rank) >= max(OF_THE_STEPS * _judged(rank), FEWEST_STEPS)


def _chained(rank: Growth) -> bool:
    return _additions(rank) >= max(OF_THE_STEPS * _judged(rank), FEWEST_STEPS)


def _counted_twice(rank: Growth) -> bool:
    before = rank.graph_depth_before if _chained(rank) else rank.graph_tensors_before
    return before is not None


def _growth(rank: Growth) -> float:
    """Growth in MiB per step of GPU memory, else of host memory; 0 if it does not grow steadily."""
    for amounts in (rank.device, rank.resident):
        found = trend(rank.steps, amounts) if len(amounts) == len(rank.steps) else None
        if found and found.steady and found.growth > OVER_SWING * found.swing:
            return found.per_step
    return 0.0


def _finding(ranks: Sequence[Growth]) -> Finding:
    worst = max(ranks, key=_growth)
    numbers = tuple(sorted(rank.rank for rank in ranks))
    steps, growth, chained = _judged(worst), _growth(worst), _chained(worst)
    count = _additions(worst) if chained else _tensors(worst)
    kept = f"{count} tensors with their graph"
    if chained:
        kept = f"a tensor with {count} additions in its graph"
    effect = f"memory grew by {growth:.2g} MiB per step" if growth else "memory shows no growth yet"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if _counted_twice(worst) else Confidence.LIKELY,
        because=f"{endings.ranks(numbers)} kept {kept} in {steps} steps, and {effect}",
        evidence=(
            Observation(
                name=(
                    "additions in the graph of one tensor"
                    if chained
                    else "tensors kept with a graph"
                ),
                value=count,
                expected=1,
                source="only the last loss remains between two steps",
            ),
        ),
        where=Where(hosts=tuple(sorted({rank.host for rank in ranks} - {""})), ranks=numbers),
        cost=Cost(value=round(growth, 3), unit="MiB/step") if growth else None,
        fixes=(_add_numbers() if chained else _keep_numbers(),),
    )


def _add_numbers() -> Fix:
    return Fix(
        summary="add up detached losses",
        paste="total += loss.detach()  # not: total += loss",
        language="python",
        caution=_NOT_ITEM,
    )


def _keep_numbers() -> Fix:
    return Fix(
        summary="store detached tensors",
        paste=(
            "history.append(loss.detach())  # not: history.append(loss)\n"
            "outputs.append(output.detach().cpu())  # and evaluate under torch.no_grad()"
        ),
        language="python",
        caution=_NOT_ITEM,
    )
