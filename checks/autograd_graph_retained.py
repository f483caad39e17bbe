"""Losses or metrics are kept with the graph that they were computed by.

A tensor that requires a gradient holds the graph behind it: nodes, and before backward has run also
the activations of the whole forward pass. ``total += loss`` or ``history.append(loss)`` keeps one
such graph for each step, so that memory grows until the run ends out of memory, after an epoch or
two.

Seen from outside: allocated memory grows by the same amount with each step, on the GPU or the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.trend import FEWEST_STEPS, trend
from ddoctor.evidence.host import cpu_list
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("host-memory-leak", "memory-headroom-low", "cuda-oom-fragmentation")

# A loop that keeps one for each step holds as many as there were steps; half of it leaves room for
# what is kept in every second step only. A sound loop holds a few, and no more with more steps.
OF_THE_STEPS = 0.5
# Growth that stands out from what comes and goes.
OVER_SWING = 5.0


def kept(memory: MemoryOverTime) -> Iterator[Finding]:
    ranks = [rank for rank in memory.ranks if _held(rank) or _chained(rank)]
    # What does not grow may be the model's own: weight_norm keeps a tensor with a graph for each
    # layer. Where it was counted twice, or memory shows it, it is known to grow.
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
    """MiB per step, of the GPU or else of the process; 0: it does not grow steadily."""
    for amounts in (rank.device, rank.resident):
        found = trend(rank.steps, amounts) if len(amounts) == len(rank.steps) else None
        if found and found.steady and found.growth > OVER_SWING * found.swing:
            return found.per_step
    return 0.0


def _finding(ranks: Sequence[Growth]) -> Finding:
    worst = max(ranks, key=_growth)
    numbers = tuple(sorted(rank.rank for rank in ranks))
    who = f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {cpu_list(numbers)}"
    steps, growth, chained = _judged(worst), _growth(worst), _chained(worst)
    count = _additions(worst) if chained else _tensors(worst)
    what = f"{count} additions behind one tensor" if chained else f"{count} tensors with a graph"
    told = f"memory grew by {growth:.2g} MiB per step" if growth else "memory does not show it yet"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if _counted_twice(worst) else Confidence.LIKELY,
        because=f"{who} came to keep {what} in {steps} steps, and {told}",
        evidence=(
            Observation(
                name="additions behind one tensor" if chained else "tensors kept with a graph",
                value=count,
                expected=1,
                source="between two steps no more than the last loss is left",
            ),
        ),
        where=Where(hosts=tuple(sorted({rank.host for rank in ranks} - {""})), ranks=numbers),
        cost=Cost(value=round(growth, 3), unit="MiB/step") if growth else None,
        fixes=(_add_numbers() if chained else _keep_numbers(),),
    )


def _add_numbers() -> Fix:
    return Fix(
        summary="add up what is detached",
        paste="total += loss.detach()  # not: total += loss",
        language="python",
        caution="with .item() in its place the host waits for the GPU in every step",
    )


def _keep_numbers() -> Fix:
    return Fix(
        summary="keep what is detached",
        paste=(
            "history.append(loss.detach())  # not: history.append(loss)\n"
            "outputs.append(output.detach().cpu())  # and evaluate under torch.no_grad()"
        ),
        language="python",
        caution="with .item() in its place the host waits for the GPU in every step",
    )
