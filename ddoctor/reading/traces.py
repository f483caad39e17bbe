"""Makes the steps of a run from the traces that torch's profiler wrote, of one or several ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import PHASES, Phase, RankSteps, Steps, Wait
from ddoctor.evidence.trace import RankTrace, SyncCall, Traces
from ddoctor.reading import trace_events, trace_gpu
from ddoctor.reading.inputs import Content, Input
from ddoctor.reading.trace_events import Trace
from ddoctor.reading.trace_gpu import GpuStep, Place, Waits
from ddoctor.reading.trace_host import ONE_PROCESS, RankEvents
from ddoctor.reading.trace_ranks import Collective, RankTimeline

# In the names that people give: rank3.json.gz, trace_rank_3.pt.trace.json, trace-3.json.
RANK = re.compile(r"rank[-_.]?(\d{1,7})|(\d{1,7})(?:\.[a-zA-Z]\w{0,9}){0,9}$", re.IGNORECASE)
# Size of DDP's first and smallest bucket (dist._DEFAULT_FIRST_BUCKET_BYTES).
SMALL_BYTES = 2**20
MOST_SYNCS = 5
"""Places that are kept of each rank."""


@dataclass(kw_only=True)
class _Rank:
    """What is kept of the traces of one rank: the rest would fill the memory."""

    host: str
    device: str
    workers: bool | None = None
    seconds: dict[int, Mapping[str, float]] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    exposed: list[Sequence[tuple[int, float, float]]] = field(default_factory=list)
    """Of each collective: steps, and when nothing else ran in them."""
    gpu: dict[int, GpuStep] = field(default_factory=dict)


@dataclass
class TraceReader:
    """Those of one run."""

    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _files: list[str] = field(default_factory=list)
    _world: int = 0

    def read(self, given: Input, content: Content) -> None:
        """Read one file; those of a rank that profiled several times are joined.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged, has no steps, or has steps that another file has.
        """
        trace = trace_events.decoded(content.read(trace_events.MOST_BYTES + 1))
        events = RankEvents(trace)
        number = self._number(given, trace)
        earlier = self._ranks.get(number)
        steps = {one.number for one in events.windows}
        if earlier is not None and steps & earlier.seconds.keys():
            raise ValueError(
                f"another file has the same steps of rank {number}: give those of one run"
            )
        timeline = RankTimeline(events)
        one = self._ranks.setdefault(number, _Rank(host=trace.host, device=_device(events)))
        one.seconds.update(timeline.seconds)
        one.numbers.update(timeline.numbers)
        one.collectives += timeline.collectives
        one.exposed += [[*events.within(call.exposed)] for call in timeline.collectives]
        if events.gpu:
            one.gpu.update(trace_gpu.by_step(events, timeline))
        if events.loaders:
            one.workers = not any(ONE_PROCESS in loader.name for loader in events.loaders)
        self._files.append(given.name)
        if trace.distributed is not None:
            self._world = max(self._world, trace.distributed.world_size or 0)

    def _number(self, given: Input, trace: Trace) -> int:
        """The rank of a file: by what it says, by its name, or else the next one."""
        if trace.distributed is not None and trace.distributed.rank is not None:
            return trace.distributed.rank
        named = RANK.search(given.path.name)
        if named is not None:
            return int(named[1] or named[2])
        return max(self._ranks, default=-1) + 1

    def sections(self) -> Iterator[Steps | Traces]:
        """The steps that all traces have, and what else they say."""
        if not self._ranks:
            return
        ranks = dict(sorted(self._ranks.items()))
        steps = sorted(set.intersection(*({*one.seconds} for one in ranks.values())))
        world = max(self._world, len(ranks))
        calls = _Calls(ranks, world, {*steps})
        yield Traces(
            files=tuple(self._files),
            world=world,
            steps=len(steps),
            ranks=tuple(
                _rank_trace(number, one, steps, calls.small(number))
                for number, one in ranks.items()
            ),
        )
        if steps:
            yield Steps(
                ranks=tuple(
                    _rank_steps(number, one, steps, calls.spent(number))
                    for number, one in ranks.items()
                ),
                warm_up=0,
                clock="cuda" if all(one.gpu for one in ranks.values()) else "host",
                waits=tuple(calls.waits()),
                traced=True,
                complete=len(ranks) == world,
            )


class _Calls:
    """The collectives of all ranks, matched.

    The last rank to enter a collective does not wait in it: what it takes there is the transfer,
    and what others take longer is waiting (the clocks of the ranks need not agree).
    """

    def __init__(self, ranks: Mapping[int, _Rank], world: int, steps: set[int]) -> None:
        self._ranks, self._steps = ranks, steps
        self._last: dict[tuple[int, int], tuple[float, int]] = {}
        """By rank and place of a call: microseconds of the transfer, and the last rank."""
        same: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for number, one in ranks.items():
            for place, call in enumerate(one.collectives):
                same[call.step, call.kind][number].append(place)
        for by_rank in same.values():
            counts = {len(places) for places in by_rank.values()}
            first, places = next(iter(by_rank.items()))
            members = ranks[first].collectives[places[0]].members or world
            if len(counts) == 1 and len(by_rank) == members:
                for row in zip(*by_rank.values(), strict=True):
                    self._match(dict(zip(by_rank, row, strict=True)))

    def _match(self, row: Mapping[int, int]) -> None:
        calls = {number: self._ranks[number].collectives[place] for number, place in row.items()}
        lasts = {number: call.end - call.begin for number, call in calls.items()}
        last = min(lasts, key=lambda number: lasts[number])
        for number, place in row.items():
            self._last[number, place] = lasts[last], last

    def _parts(self, number: int) -> Iterator[tuple[int, int, float, float, int | None]]:
        """Step, place, seconds of waiting and of transfer, and the rank that is waited for."""
        one = self._ranks[number]
        for place, (call, exposed) in enumerate(zip(one.collectives, one.exposed, strict=True)):
            transfer, last = self._last.get((number, place), (0.0, None))
            came = call.end - transfer
            for step, begin, end in exposed:
                if step in self._steps:
                    sent = max(0.0, end - max(begin, came))
                    yield step, place, (end - begin - sent) / 1e6, sent / 1e6, last

    def spent(self, number: int) -> dict[int, dict[str, float]]:
        """Seconds of waiting and transfer in each step of a rank."""
        found: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for step, _, waited, sent, _ in self._parts(number):
            found[step]["waiting"] += waited
            found[step]["transfer"] += sent
        return found

    def small(self, number: int) -> tuple[int, int, float]:
        """Number, bytes and seconds of the small calls of the script."""
        rows = self._ranks[number].collectives
        small = {
            place: call.bytes
            for place, call in enumerate(rows)
            if call.by_script and call.bytes is not None and call.bytes < SMALL_BYTES
        }
        seconds = sum(sent for _, place, _, sent, _ in self._parts(number) if place in small)
        mine = [size for place, size in small.items() if rows[place].step in self._steps]
        return len(mine), sum(mine), seconds

    def waits(self) -> Iterator[Wait]:
        """How long each rank waited for which."""
        for number in self._ranks:
            late: dict[int, float] = defaultdict(float)
            for _, _, waited, _, last in self._parts(number):
                if last not in (None, number):
                    late[last] += waited
            for rank, seconds in sorted(late.items()):
                if seconds > 0:
                    yield Wait(waiter=number, late=rank, seconds=round(seconds, 6))


def _rank_steps(
    number: int, one: _Rank, steps: Sequence[int], calls: Mapping[int, Mapping[str, float]]
) -> RankSteps:
    spent = {step: {**one.seconds[step], **calls.get(step, {})} for step in steps}
    seen = {name for row in spent.values() for name, seconds in row.items() if seconds > 0}
    # Ranks that never wait are known to wait for nothing.
    seen |= {"waiting", "transfer"}
    numbers = tuple(one.numbers.get(step, 0) for step in steps)
    return RankSteps(
        elements=numbers if all(numbers) else (),
        place=RankPlace(rank=number, host=one.host, device=one.device),
        phases=tuple(
            Phase(name=name, seconds=tuple(round(spent[step].get(name, 0.0), 7) for step in steps))
            for name in PHASES
            if name in seen
        ),
    )


def _rank_trace(
    number: int, one: _Rank, steps: Sequence[int], small: tuple[int, int, float]
) -> RankTrace:
    rows = [one.gpu[step] for step in steps if step in one.gpu]
    waits: dict[Place, Waits] = defaultdict(Waits)
    for row in rows:
        for place, wait in row.syncs.items():
            waits[place].calls += wait.calls
            waits[place].blocked += wait.blocked
            waits[place].idle += wait.idle
    most = sorted(waits.items(), key=lambda item: (-item[1].idle, -item[1].blocked))
    return RankTrace(
        rank=number,
        workers=one.workers,
        kernels=sum(row.kernels for row in rows),
        late_launch_seconds=round(sum(row.late_launch for row in rows), 7),
        syncs=tuple(
            SyncCall(
                operator=place.operator,
                call=place.call,
                line=place.line,
                calls=wait.calls,
                blocked_seconds=round(wait.blocked, 7),
                idle_seconds=round(wait.idle, 7),
            )
            for place, wait in most[:MOST_SYNCS]
        ),
        pageable_copies=sum(row.copies for row in rows),
        pageable_bytes=sum(row.copied_bytes for row in rows),
        pageable_seconds=round(sum(row.copying for row in rows), 7),
        small_collectives=small[0],
        small_bytes=small[1],
        small_seconds=round(small[2], 7),
    )


def _device(events: RankEvents) -> str:
    devices = {one.args.device for one in events.gpu if one.args is not None}
    known = sorted(one for one in devices if one is not None)
    return f"cuda:{known[0]}" if known else "cuda" if events.gpu else "cpu"
