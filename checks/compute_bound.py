"""The time of a step goes into computing, on all ranks alike.

Nothing keeps the ranks from their work: the batches are there in time, no rank waits for another,
and nothing is done beside the model. Then a step takes as long as its arithmetic, and it becomes
shorter by less of that (another precision, fused operations, a smaller model) or by more hardware,
not by repairs. That is how a training should be, so this is a note.

Seen from outside: the main threads of all ranks are in the forward pass, the backward pass and the
optimizer, and on a CPU. Of a run on GPUs the stacks tell only what is handed over to them; whether
these compute or wait for one another, `ddoctor run` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# Of the time of a look: of the rest, as much as counts as a slowdown (10 %) and as much again as is
# noise of sampling.
MOST = 0.8
# Of the time: less is not worth another optimizer.
NOTABLE = 0.1


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.whole or not live.moves or live.straggler is not None:
        return
    shares = list(map(_computing, live.ranks))
    if min(shares) < MOST or any(rank.seen.on_gpu or not rank.works for rank in live.ranks):
        return
    ranks = f"all {len(live.ranks)} ranks compute" if len(live.ranks) > 1 else "the run computes"
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks} for at least {min(shares):.0%} of the time, and wait for nothing: what makes "
            "the step shorter is less to compute, or more to compute it with"
        ),
        evidence=tuple(_rows(live.ranks, shares)),
        fixes=(_compiled(), _half(), *_fused(live.ranks)),
    )


def _computing(rank: LiveRankState) -> float:
    """In what part of the time it was in the model or the optimizer; 0 to 1."""
    return sum(rank.shares.get(phase, 0.0) for phase in IN_MODEL)


def _rows(every: Sequence[LiveRankState], shares: Sequence[float]) -> Iterator[Observation]:
    for rank, share in zip(every, shares, strict=True):
        yield Observation(
            name=f"computing, rank {rank.rank}", value=round(100 * share), unit="% of time"
        )
        yield Observation(
            name=f"CPUs in use, rank {rank.rank}",
            value=round(rank.seen.cpu_seconds / rank.seconds, 1),
        )


def _compiled() -> Fix:
    return Fix(
        summary="let torch fuse the model's operations",
        paste="model = torch.compile(model)  # before DistributedDataParallel",
        language="python",
        caution="the first steps compile; inputs of ever new shapes do so again and again",
    )


def _half() -> Fix:
    return Fix(
        summary="compute in bfloat16, where these CPUs have instructions for it",
        paste=(
            "# grep -o -m1 -w -e amx_bf16 -e avx512_bf16 /proc/cpuinfo\n"
            'with torch.autocast("cpu", dtype=torch.bfloat16):\n'
            "    loss = criterion(model(inputs), targets)"
        ),
        language="python",
        caution="slower where grep finds none; compare the loss with that of float32",
    )


def _fused(every: Sequence[LiveRankState]) -> Iterator[Fix]:
    share = min(rank.seen.share("optimizer") for rank in every)
    if share >= NOTABLE:
        yield Fix(
            summary=f"take a fused optimizer: the steps of this one are {share:.0%} of the time",
            paste="torch.optim.AdamW(model.parameters(), fused=True)  # Adam, SGD, Adagrad, too",
            language="python",
        )
