"""The ranks pass tensors of different shapes to the same collective.

In an all-reduce, broadcast or all-gather, all ranks must pass the same number of elements of the
same type. They differ if the last batch of an epoch is shorter, predictions are not padded to one
length, or the size of a layer depends on the data. gloo then aborts the process in native code, or
silently delivers a part. NCCL waits for the rest until its watchdog times out.

Symptoms: "op.preamble.length <= op.nbytes" and SIGABRT on one rank, "Connection reset by peer" on
the others; with NCCL a hang, or wrong values.

To fix it, pad to the longest tensor of all ranks, or drop the last batch.
"""

# Above 150 lines: it judges errors of a run, the flight recorder, stacks of a live run, and DDP's
# own test.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ddoctor.analysis import collective_mismatch, endings, log_events
from ddoctor.analysis.collective_mismatch import Mismatch, held, left_behind, mismatch
from ddoctor.analysis.flight_records import RECORDER, by_nccl, difference_in, differing
from ddoctor.analysis.live_ranks import at_places, named, places
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.flight_records import FlightDumps, FlightRecords
from ddoctor.evidence.log import Log, LogEvent
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "rank-dependent-control-flow", "script-error")

# torch/csrc/distributed/c10d/reducer.cpp, verify_params_across_processes
MODELS = re.compile(
    r"(?:params\[\d+\] in this process with sizes .* appears not to match"
    r"|DDP expects same model across all ranks).*"
)


def brought(run: TrainingRun) -> Iterator[Finding]:
    found = mismatch(run)
    if found is not None and found.same_call:
        because = f"{found.detail or f'{found.told_by} reports a mismatch'}: {found}".removesuffix(
            ": "
        )
        exact = found.confidence is Confidence.CERTAIN
        yield _finding(found, because, () if exact else [_print_shapes(run.command)], ())


def left_by_the_others(run: TrainingRun) -> Iterator[Finding]:
    """A rank hangs in a collective that all others, who needed it there, have left."""
    waiting = held(run)
    last = left_behind(waiting)
    if last is None:
        return
    others = [one for one in waiting if one is not last]
    have = "have" if len(others) > 1 else "has"
    at = endings.place(last.place)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{endings.ranks([last.rank])} waits {endings.stood(last)}, collective "
            f"{last.collectives} of the script, which {endings.ranks(one.rank for one in others)} "
            f"{have} already left: who passes fewer elements is done sooner; nothing moved for "
            f"{last.doing_seconds:.0f} s"
        ),
        evidence=tuple(
            Observation(name=endings.ranks([one.rank]), value=endings.stood(one)) for one in waiting
        ),
        where=Where.of([last]),
        fixes=(_print_shapes(run.command), *_padded(at)),
    )


def recorded_in_a_live_run(
    live: LiveState, records: tuple[FlightRecords, ...]
) -> Iterator[Finding]:
    found = differing(live, records)
    if found is not None and found.same_call:
        because = f"{found.detail}, {found}, according to {RECORDER}"
        because += f"; {live.standstill}"
        yield _finding(found, because, (), by_nccl(records))


def dumped(dumps: FlightDumps) -> Iterator[Finding]:
    found = difference_in(dumps)
    if found is not None and found.same_call:
        because = f"{found.detail}, {found}, according to the dumps of {RECORDER}"
        yield _finding(found, because, (), ())


def in_a_log(log: Log) -> Iterator[Finding]:
    for event in log.of("collective-mismatch"):
        if collective_mismatch.same_call(event.text):
            yield log_events.finding(
                [event], "the ranks call the same collective with different shapes", *_padded("")
            )
            return
    numbers: dict[str, list[LogEvent]] = {}
    for one in log.of("watchdog"):
        numbers.setdefault(one.values.get("number", ""), []).append(one)
    for events in numbers.values():
        brought = {one.values["numel"] for one in events if "numel" in one.values}
        if len(brought) > 1 and len({one.values.get("operation") for one in events}) == 1:
            yield log_events.finding(
                events,
                "the ranks brought different numbers of elements to the same collective: "
                + " and ".join(sorted(brought)),
                *_padded(""),
            )
            return
    for number, calls in collective_mismatch.printed_calls(log).items():
        if len({one.values["operation"] for one in calls}) == 1:
            sizes = sorted({int(one.values["numel"]) for one in calls})
            yield log_events.finding(
                calls,
                f"the last {calls[0].values['operation']} of each rank has the number {number}, "
                f"and other numbers of elements: {' and '.join(map(str, sizes))}",
                *_padded(""),
                confidence=Confidence.POSSIBLE,
            )
            return


def _finding(
    found: Mismatch, because: str, fixes: Iterable[Fix], more: Iterable[Observation]
) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=found.confidence,
        because=because,
        evidence=(
            *(
                Observation(
                    name=f"{endings.ranks(one.ranks)} passed", value=str(one), source=found.told_by
                )
                for one in found.brought
            ),
            *more,
        ),
        fixes=(*fixes, *_padded(found.place)),
    )


def in_a_live_run(live: LiveState, records: tuple[FlightRecords, ...] | None) -> Iterator[Finding]:
    """One rank waits in a collective that all others have left, and no branch avoids it.

    A rank that passes fewer elements finishes sooner.
    """
    if records and differing(live, records):
        return
    # Without the source, no dump shows whether a branch avoids the call.
    if len(live.ranks) < 2 or not live.whole or not live.hung or live.dumped:
        return
    if any(one.doing != "collective" for one in live.ranks) or live.unmatched:
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
            f"{waiting.who} waits {waiting.where}, which {named(rest)} "
            f"{'have' if len(rest) > 1 else 'has'} already left (no branch avoids it)"
            f"{live.others([waiting])}; {live.standstill}"
        ),
        evidence=at_places(*places(live.ranks).values()),
        where=Where.of([waiting]),
        fixes=(
            _print_shapes(live.looks[0].command),
            *_padded(waiting.place),
        ),
    )


def models_differ(run: TrainingRun) -> Iterator[Finding]:
    errors = [(one, found[0]) for one in run.ranks if (found := MODELS.search(one.message))]
    if not errors:
        return
    first, words = errors[0]
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"the ranks built different models: DDP on {endings.ranks([first.rank])} says '{words}'"
            f"{endings.at(first.place)}"
        ),
        evidence=tuple(
            Observation(name=f"error of {endings.ranks([one.rank])}", value=words, source="DDP")
            for one, words in errors
        ),
        fixes=(
            Fix.python(
                summary="build the model from the same sizes on all ranks: those of rank 0",
                paste=(
                    "sizes = [vocabulary_size, classes]   # whatever the model is built from\n"
                    "torch.distributed.broadcast_object_list(sizes, src=0)\n"
                    "vocabulary_size, classes = sizes"
                ),
                caution="sizes that a rank counts on its share of the data differ between ranks",
            ),
        ),
    )


def _print_shapes(command: Sequence[str]) -> Fix:
    return Fix(
        summary="print the shape and type that each rank passes",
        paste=f"TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun … {' '.join(command)}",
        caution="slow, since torch compares every collective first: only for debugging",
    )


def _padded(place: str) -> Iterator[Fix]:
    at = f" at {place}" if place else ""
    yield Fix.python(
        summary=f"pass the same number of elements on every rank{at}: pad to the longest",
        paste=(
            "length = torch.tensor(tensor.shape[0], device=tensor.device)\n"
            "torch.distributed.all_reduce(length, op=torch.distributed.ReduceOp.MAX)\n"
            "padding = tensor.new_zeros(int(length) - tensor.shape[0], *tensor.shape[1:])\n"
            "tensor = torch.cat([tensor, padding])"
        ),
        caution="with accelerate, use pad_across_processes or gather_for_metrics",
    )
    yield Fix.python(
        summary="drop the last batch, if that is the shorter one",
        paste="DataLoader(..., drop_last=True)",
    )
