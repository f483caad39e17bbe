"""The ranks bring tensors of different shapes to the same collective.

All ranks must bring equally many numbers of one type to an all-reduce, a broadcast, an all-gather.
The last batch of an epoch, predictions that were not padded to one length, or a layer whose size
depends on the data make them differ. gloo then ends the process in native code, or hands over a
part in silence; NCCL waits for the rest until the watchdog comes.

Seen from outside: "op.preamble.length <= op.nbytes" and SIGABRT on one rank, "Connection reset by
peer" on the others; with NCCL a hang, or numbers that make no sense.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.analysis.collective_mismatch import Mismatch, mismatch
from ddoctor.analysis.flight_records import RECORDER, by_nccl, differing
from ddoctor.analysis.live_ranks import named, others, places
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "rank-dependent-control-flow")

# torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes
MODELS = re.compile(
    r"(?:params\[\d+\] in this process with sizes .* appears not to match"
    r"|DDP expects same model across all ranks).*"
)


def brought(run: TrainingRun) -> Iterator[Finding]:
    found = mismatch(run)
    if found is None or not found.same_call:
        return
    place = next((one.place for one in found.brought if one.place), "")
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if found.told_by != "gloo" else Confidence.LIKELY,
        because=_because(found),
        evidence=tuple(
            Observation(
                name=f"rank {one.rank} brought",
                value=f"{one.operation} {one.what}".strip(),
                source=found.told_by,
            )
            for one in found.brought
        ),
        where=Where(),
        fixes=tuple(_fixes(run, place, exact=found.told_by != "gloo")),
    )


def recorded_in_a_live_run(
    live: LiveState, records: tuple[FlightRecords, ...]
) -> Iterator[Finding]:
    found = differing(live, records)
    if found is None or not found.same_call:
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=found.confidence,
        because=f"{found}, as {RECORDER} tells; nothing moved for {live.seconds:.0f} s",
        evidence=(
            *(
                Observation(name=f"{endings.ranks(ranks)} brought", value=what, source=RECORDER)
                for what, ranks in found.brought.items()
            ),
            *by_nccl(records),
        ),
        fixes=tuple(_padded(found.place)),
    )


def in_a_live_run(live: LiveState, records: tuple[FlightRecords, ...] | None) -> Iterator[Finding]:
    """Where one rank has left a collective that another still waits in, and no branch leads past
    it: whoever brought less was through sooner."""
    if records and differing(live, records):
        return
    if len(live.ranks) < 2 or not live.whole or not live.hung:
        return
    if any(one.doing != "collective" for one in live.ranks):
        return
    waiting = next(
        (one for one in live.ranks if all(map(one.is_before, set(live.ranks) - {one}))), None
    )
    if waiting is None or not waiting.surely:
        return
    rest = [one for one in live.ranks if one is not waiting]
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{waiting.who} waits {waiting.where}, which {named(rest)} came to as well, for no "
            f"branch leads past it, and {'have' if len(rest) > 1 else 'has'} left"
            f"{others(live.ranks, [waiting])}; nothing moved for {waiting.seconds:.0f} s"
        ),
        evidence=tuple(
            Observation(name=named(rows), value=where) for where, rows in places(live.ranks).items()
        ),
        where=Where(hosts=(waiting.host,), ranks=(waiting.rank,)),
        fixes=(
            Fix(
                summary="see each rank's shape and type",
                paste=f"TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun … {' '.join(live.command)}",
                caution="every collective is compared first, which is slow: for the search only",
            ),
            *_padded(waiting.place),
        ),
    )


def models_differ(run: TrainingRun) -> Iterator[Finding]:
    told = [(one, found[0]) for one in run.ranks if (found := MODELS.search(one.message))]
    if not told:
        return
    first, words = told[0]
    line = endings.place(first.place)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"the ranks built different models: DDP on rank {first.rank} says '{words}'"
            f"{f' at {line}' if line else ''}"
        ),
        evidence=tuple(
            Observation(name=f"error of rank {one.rank}", value=words, source="DDP")
            for one, words in told
        ),
        fixes=(
            Fix(
                summary="build the model from the same numbers on all ranks, say those of rank 0",
                paste=(
                    "sizes = [vocabulary_size, classes]   # whatever the model is built from\n"
                    "torch.distributed.broadcast_object_list(sizes, src=0)\n"
                    "vocabulary_size, classes = sizes"
                ),
                language="python",
                caution="what is counted on each rank's own share of the data differs",
            ),
        ),
    )


def _because(found: Mismatch) -> str:
    told = str(found)
    if found.detail:
        return f"{found.detail}{f', in the collective of {told}' if told else ''}"
    return f"{told}: {found.told_by} tells that they differ"


def _fixes(run: TrainingRun, place: str, *, exact: bool) -> Iterator[Fix]:
    if not exact:
        yield Fix(
            summary="see each rank's shape and type",
            paste=f"TORCH_DISTRIBUTED_DEBUG=DETAIL {endings.again(run)}",
            caution="every collective is compared first, which is slow: for the search only",
        )
    yield from _padded(place)


def _padded(place: str) -> Iterator[Fix]:
    at = f" at {place}" if place else ""
    yield Fix(
        summary=f"bring equally much on every rank{at}: pad to the longest",
        paste=(
            "length = torch.tensor(tensor.shape[0], device=tensor.device)\n"
            "torch.distributed.all_reduce(length, op=torch.distributed.ReduceOp.MAX)\n"
            "padding = tensor.new_zeros(int(length) - tensor.shape[0], *tensor.shape[1:])\n"
            "tensor = torch.cat([tensor, padding])"
        ),
        language="python",
        caution="accelerate has pad_across_processes and gather_for_metrics for it",
    )
    yield Fix(
        summary="where it is the last batch that is shorter, leave it out",
        paste="DataLoader(..., drop_last=True)",
        language="python",
    )
