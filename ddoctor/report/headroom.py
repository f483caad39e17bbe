"""How many samples fit, what each rank has left, and how fast they train."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.memory_headroom import MARGIN, Longest, MemoryHeadroom, RankHeadroom
from ddoctor.evidence.section import Evidence
from ddoctor.report.places import place_name, ranks
from ddoctor.report.wording import quantity, size

STOPPED = {
    "host-memory": "the host has no more memory to simulate with",
    "time": "a step would take too long here",
    "sizes": "larger sizes were not tried",
    "data": "an epoch has no more samples per rank",
    "script": "the script had no more steps",
}
# Of more ranks, only the limiting one is shown.
SHOWN = 4


def rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of the report's head."""
    for swept in evidence.all(MemoryHeadroom):
        spread = ", by FSDP" if swept.sharded and len(swept.ranks) > 1 else ""
        yield "workload", swept.workload + spread + (", on CPU tensors" if swept.played else "")
        yield "micro-batch", _sizes(swept)
        if swept.longest is not None:
            yield "sequence", _lengths(swept.longest)
        shown = swept.ranks if len(swept.ranks) <= SHOWN else (swept.tightest,)
        for rank in shown:
            yield "memory", f"{place_name(rank.place)}: {_memory(rank, swept)}"
        sizes = [one.micro_batch for one in swept.rates]
        rates = [(number, rate) for number in sizes if (rate := swept.samples_per_second(number))]
        if rates:
            told = (f"{quantity(rate)} samples/s with {number}" for number, rate in rates)
            yield "throughput", ", ".join(told)


def _sizes(swept: MemoryHeadroom) -> str:
    now = f"; now {swept.current}" if swept.current is not None else ""
    trials = f"; {len({one.micro_batch for one in swept.trials})} sizes tried"
    if not swept.largest:
        return f"not one sample fits{now}"
    if swept.too_large is None:
        foretold = f", {swept.foretold} forecast" if swept.foretold is not None else ""
        most = f"{swept.largest} fit; {STOPPED.get(swept.stopped, '')}{foretold}"
    else:
        of_it = (one for one in swept.trials if one.micro_batch == swept.too_large)
        short = next(one for one in of_it if one.outcome != "fits")
        why = "make the allocator thrash" if short.outcome == "thrashes" else "do not fit"
        fit = "at most" if swept.too_large == swept.largest + 1 else "fit"
        most = f"{swept.largest} {fit}, {swept.too_large} {why} {ranks(short.ranks)}"
    return f"{most}; {swept.safe} leave {MARGIN:.0%}{now}{trials}"


def _lengths(longest: Longest) -> str:
    each = f"{longest.samples} samples" if longest.samples > 1 else "one sample"
    if not longest.tokens:
        return f"not one token fits with {each}; now {longest.current}"
    if longest.too_long is None:
        most = f"{longest.tokens} tokens fit with {each}; {STOPPED.get(longest.stopped, '')}"
    else:
        most = f"{longest.tokens} tokens at most with {each}, {longest.too_long} do not fit"
    return f"{most}; now {longest.current}"


def _memory(rank: RankHeadroom, swept: MemoryHeadroom) -> str:
    at = swept.current if swept.current is not None and rank.use(swept.current) else swept.safe
    parts = [f"{size(rank.limit)} of {size(rank.total)}" if rank.others else size(rank.limit)]
    if rank.fixed is not None and rank.per_sample is not None:
        parts.append(f"{size(rank.fixed)} fixed and {size(rank.per_sample)} a sample")
    used, left = rank.use(at), rank.left(at)
    if used is not None and left is not None:
        unused = f", {size(used.unused)} of it in pieces" if used.unused else ""
        parts.append(f"with {at} {size(used.reserved)} taken{unused}, {size(left)} left")
    return "; ".join(parts)
