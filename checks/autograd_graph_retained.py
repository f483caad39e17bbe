"""Losses or metrics keep their autograd graph, so memory grows with every step.

A tensor that requires a gradient holds the graph behind it. Before backward has run, the graph also
holds the activations of the whole forward pass. ``total += loss`` or ``history.append(loss)`` keeps
one such graph per step. Memory grows until the run is out of memory, often after an epoch or two.

Symptoms: allocated memory grows by the same amount in every step, on the GPU or on the host.

To fix it, store ``loss.detach()`` instead of ``loss``, and evaluate under ``torch.no_grad()``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, snapshot_failures
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.snapshot_failures import SnapshotFailures, grown
from ddoctor.analysis.trend import FEWEST_STEPS, trend
from ddoctor.evidence.memory_snapshot import DeviceMemory, MemorySnapshots
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# Above 150 lines: a recorded run counts the graphs, a memory snapshot shows what they hold.
EXPLAINS = (
    "host-memory-leak",
    "memory-headroom-low",
    "cuda-oom-fragmentation",
    "model-does-not-fit",
    "step-time-grows",
)

# A loop that keeps one tensor per step holds as many as there were steps. Half of that also covers
# a loop that keeps one in every second step. A healthy loop holds a few, however many steps it ran.
OF_THE_STEPS = 0.5
MOST_NAMED = 2
# A graph keeps what each layer saved for backward. A list of outputs, or a bank of features that is
# meant to grow, keeps one or two tensors of a step, and no graph.
OF_OUTPUTS = 2
# Share of the allocated memory: less may be a window of the last values.
NOTABLE = 0.1


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.kept_losses[:1]:
        adds = "+=" in one.text
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one)} stores the loss of every step with its autograd graph, in a "
                "variable from before the training loop"
            ),
            fixes=(_ADD_DETACHED if adds else _STORE_DETACHED,),
        )


_NOT_ITEM = "do not use .item() instead: the host then waits for the GPU in every step"


def kept(memory: MemoryOverTime) -> Iterator[Finding]:
    # A constant count may belong to the model: weight_norm keeps a tensor with a graph per layer.
    # Only two counts, or memory that grows, prove growth.
    ranks = [one for one in memory.ranks if _kept(one) and (_counted_twice(one) or _growth(one))]
    if not ranks:
        return
    worst = max(ranks, key=_growth)
    growth, chained, count = _growth(worst), _chained(worst), _kept(worst)
    kept = f"a tensor with {count} additions in its graph"
    if not chained:
        kept = f"{count} tensors with their graph"
    effect = f"memory grew by {growth:.2g} MiB per step" if growth else "memory shows no growth yet"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN if _counted_twice(worst) else Confidence.LIKELY,
        because=(
            f"{endings.ranks(one.rank for one in ranks)} kept {kept} in {_judged(worst)} steps, "
            f"and {effect}{_by(worst)}"
        ),
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
        where=Where.of(ranks),
        cost=Cost(value=round(growth, 3), unit="MiB/step") if growth else None,
        fixes=(_ADD_DETACHED if chained else _STORE_DETACHED,),
    )


def in_snapshots(snapshots: MemorySnapshots, failures: SnapshotFailures) -> Iterator[Finding]:
    failed = [one.memory for one in failures.of_kind("grown")]
    fitting = [
        one
        for one in snapshots.devices
        if _has_graph(one) and grown(one) >= NOTABLE * one.allocated
    ]
    ranks = failed or fitting
    if not ranks:
        return
    worst = max(ranks, key=grown)
    growing = [one for one in worst.holders if one.grown]
    count = sum(one.grown_tensors for one in growing)
    lines = dict.fromkeys(endings.place(one.line) for one in growing if one.line is not None)
    at = " and ".join([*lines][:MOST_NAMED])
    steps = max(1, worst.steps)
    yield Finding(
        severity=Severity.ERROR if failed else Severity.WARNING,
        confidence=Confidence.LIKELY if _has_graph(worst) else Confidence.POSSIBLE,
        because=(
            f"{worst.name} kept {count} tensors of {worst.steps} steps, {grown(worst) / GIB:.1f} "
            f"of the {worst.allocated / GIB:.1f} GiB that torch held on GPU {worst.device}"
            + (f", allocated at {at}" if at else "")
            + (", until the memory was full" if failed else "")
        ),
        evidence=(
            Observation(
                name="tensors kept of each step",
                value=round(count / steps, 1),
                expected=0,
                source=snapshot_failures.SOURCE,
            ),
        ),
        where=snapshot_failures.where(ranks),
        cost=Cost(value=round(grown(worst) / steps / 2**20, 3), unit="MiB/step"),
        fixes=(_STORE_DETACHED,),
    )


def _has_graph(memory: DeviceMemory) -> bool:
    saved = sum(one.grown_tensors for one in memory.holders if one.kind == "activations")
    return saved > OF_OUTPUTS * memory.steps


def _by(rank: Growth) -> str:
    """The statements that store a loss, to follow a sentence; empty: none is known."""
    several = [f"{endings.place(one)}{endings.quoted(one)}" for one in rank.keeps[:MOST_NAMED]]
    return f", stored at {' or '.join(several)}" if several else ""


def _judged(rank: Growth) -> int:
    return rank.steps[-1] - rank.steps[0] if rank.steps else 0


def _additions(rank: Growth) -> int:
    return (rank.graph_depth or 0) - (rank.graph_depth_before or 0)


def _chained(rank: Growth) -> bool:
    return _additions(rank) >= max(OF_THE_STEPS * _judged(rank), FEWEST_STEPS)


def _kept(rank: Growth) -> int:
    """Additions in the longest graph, or else tensors with a graph, that are new; 0: few."""
    tensors = (rank.graph_tensors or 0) - (rank.graph_tensors_before or 0)
    count = _additions(rank) if _chained(rank) else tensors
    return count if count >= max(OF_THE_STEPS * _judged(rank), FEWEST_STEPS) else 0


def _counted_twice(rank: Growth) -> bool:
    before = rank.graph_depth_before if _chained(rank) else rank.graph_tensors_before
    return before is not None


def _growth(rank: Growth) -> float:
    """Growth in MiB per step of GPU memory, else of host memory; 0 if it does not grow steadily."""
    device = trend(rank.steps, rank.device)
    # A GPU is looked at in the middle of steps, between which it holds far less. Where the tensors
    # themselves were counted, growth need not stand out from that.
    if device is not None and _counted_twice(rank) and device.growth > device.swing:
        return device.per_step
    for found in (device, trend(rank.steps, rank.used)):
        if found is not None and found.proves():
            return found.per_step
    return 0.0


_ADD_DETACHED = Fix.python(
    summary="add up detached losses",
    paste="total += loss.detach()  # not: total += loss",
    caution=_NOT_ITEM,
)
_STORE_DETACHED = Fix.python(
    summary="store detached tensors",
    paste=(
        "history.append(loss.detach())  # not: history.append(loss)\n"
        "outputs.append(output.detach().cpu())  # and evaluate under torch.no_grad()"
    ),
    caution=_NOT_ITEM,
)
