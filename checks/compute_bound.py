"""Computation takes almost all of the step, on all ranks alike.

Nothing blocks the ranks: batches arrive in time, no rank waits for another one, and the step has no
extra work. The arithmetic of the model sets the step time. Only less arithmetic (another precision,
fused operations, a smaller model) or more hardware makes the step shorter. A healthy training looks
like this, so the finding is a note.

Symptoms: the main threads of all ranks are in the forward pass, the backward pass or the optimizer,
and on a CPU. For a run on GPUs, stacks only show what the host submits. ``ddoctor run`` measures
whether the GPUs compute or wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.live_ranks import LiveRankState, shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# Share of the samples; the rest allows for a notable slowdown (10 %) and for as much sampling
# noise.
MOST = 0.8
# Share of the time: less is not worth another optimizer.
NOTABLE = 0.1


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.whole or not live.moves or live.straggler is not None:
        return
    least = min(map(_computing, live.ranks))
    if least < MOST or any(rank.seen.on_gpu or not rank.works for rank in live.ranks):
        return
    ranks = f"all {len(live.ranks)} ranks compute" if len(live.ranks) > 1 else "the run computes"
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"{ranks} for at least {least:.0%} of the time and nothing blocks the step: only "
            "less computation or more hardware makes it shorter"
        ),
        evidence=tuple(row for rank in live.ranks for row in _rows(rank)),
        fixes=(
            Fix.python(
                summary="compile the model, so that torch fuses its operations",
                paste="model = torch.compile(model)  # before DistributedDataParallel",
                caution="the first steps are slow; every new input shape compiles again",
            ),
            Fix.python(
                summary="compute in bfloat16 if these CPUs have instructions for it",
                paste=(
                    "# grep -o -m1 -w -e amx_bf16 -e avx512_bf16 /proc/cpuinfo\n"
                    'with torch.autocast("cpu", dtype=torch.bfloat16):\n'
                    "    loss = criterion(model(inputs), targets)"
                ),
                caution="slower if grep finds none; compare the loss with that of float32",
            ),
            *_fused(live.ranks),
        ),
    )


def _computing(rank: LiveRankState) -> float:
    """The share of the time in the model or the optimizer, 0 to 1."""
    return sum(rank.shares.get(phase, 0.0) for phase in IN_MODEL)


def _rows(rank: LiveRankState) -> Iterator[Observation]:
    yield from shares("computing", {rank: _computing(rank)})
    cpus = round(rank.seen.cpu_seconds / rank.seconds, 1)
    yield Observation(name=f"CPUs in use, rank {rank.rank}", value=cpus)


def _fused(every: Sequence[LiveRankState]) -> Iterator[Fix]:
    share = min(rank.seen.share("optimizer") for rank in every)
    if share >= NOTABLE:
        yield Fix.python(
            summary=f"use a fused optimizer: optimizer steps are {share:.0%} of the time",
            paste="torch.optim.AdamW(model.parameters(), fused=True)  # Adam, SGD, Adagrad, too",
        )
