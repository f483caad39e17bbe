"""The gradients of embedding tables are dense, and a batch uses few of their rows.

An embedding looks up the rows of its batch. By default its gradient is as large as the whole table,
mostly zeros. The optimizer reads and writes every row, and DDP sends every row to all ranks. With
tables of millions of rows, as recommenders have, that is most of a step.

Symptoms: the optimizer and the communication take longer than the passes; a larger batch costs
hardly any extra time.

To fix it, pass ``sparse=True`` to the embedding, with an optimizer for sparse gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from ddoctor.analysis import live_cost
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.live_ranks import shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.stack_activities import OPTIMIZER
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low", "straggler-rank")

# Dense gradients are the default, and a table that fits into a cache costs little: a cost counts
# as a fault only where it is most of what a step does besides its passes.
LOUD = 0.4


def found(wrapping: Wrapping, steps: Steps) -> Iterator[Finding]:
    for models in wrapping.by_name(lambda one: one.table_bytes > 0):
        one = max(models, key=lambda one: one.table_rows)
        spent = min((rank.share("optimizer", "transfer") for rank in steps.ranks), default=0.0)
        share = spent * (1 - one.table_rows) * one.table_bytes / one.trainable_bytes
        if share < live_cost.SURE:
            continue
        yield Finding(
            severity=Severity.WARNING if share >= LOUD else Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=(
                f"the embedding tables of {one.name} are {one.table_bytes / MIB:.3g} of the "
                f"{one.trainable_bytes / MIB:.3g} MiB of its parameters, and a step has gradients "
                f"of {one.table_rows:.1%} of their rows; the optimizer updates all of them, and "
                f"DDP sends them: these take {spent:.0%} of the step"
            ),
            evidence=(
                Observation(
                    name="rows with a gradient",
                    value=round(100 * one.table_rows, 2),
                    unit="% of all",
                    source="a step at the start, the rank with most",
                ),
                Observation(
                    name="optimizer and transfers",
                    value=round(100 * spent),
                    unit="% of the step",
                    source="the rank with the least",
                ),
            ),
            cost=Cost(value=round(share, 3), unit="share of step"),
            fixes=(_sparse(share),),
        )


def in_a_live_run(live: LiveState, script: Script) -> Iterator[Finding]:
    if not live.moves or live.straggler is not None or not script.large_tables:
        return
    updates = {one: one.seen.share(OPTIMIZER) for one in live.ranks}
    sends = min(one.waiting for one in live.ranks)
    share = fmean(updates.values()) + sends
    if share < LOUD:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(script.large_tables[0])} makes a table whose gradient has all of its rows, "
            f"however few a batch uses; the optimizer and waiting for other ranks take {share:.0%} "
            "of the time"
        ),
        evidence=shares("time in the optimizer", updates),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_sparse(share),),
    )


def _sparse(share: float) -> Fix:
    return Fix.python(
        summary="make these gradients sparse, with a separate optimizer",
        paste=(
            "table = nn.Embedding(rows, width, sparse=True)\n"
            "tables = torch.optim.SparseAdam(table.parameters(), lr=1e-3)\n"
            "others = torch.optim.AdamW(rest_of_the_parameters, lr=1e-3)"
        ),
        caution="rows without a gradient then keep their momentum, and get no weight decay; NCCL "
        "has no sparse all-reduce in every version: torchrec shards tables",
        expected_gain=f"up to {share:.0%} of the step",
    )
