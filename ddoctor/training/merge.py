"""Merge the records of all ranks into evidence sections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import median

from msgspec.structs import replace

from ddoctor.cluster.supervisor import unpack
from ddoctor.evidence.loading import DataSeen, LoaderCurve, Loading
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Section
from ddoctor.evidence.steps import (
    BETWEEN_RANKS,
    PHASES,
    Growth,
    Lines,
    MemoryOverTime,
    Phase,
    RankLines,
    RankSteps,
    Steps,
    Wait,
)
from ddoctor.evidence.threads import ScriptThreads
from ddoctor.evidence.training import (
    Outcome,
    RankEnding,
    RankUse,
    TrainingRun,
)
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from ddoctor.proc.usage import neighbours
from ddoctor.recorder import tape
from ddoctor.recorder.recorded import Facts, LoaderFacts
from ddoctor.recorder.tape import COUNT, StepRow
from ddoctor.training import native
from ddoctor.training.messages import Now, Record
from ddoctor.training.run import NOTHING_WRITTEN, Run
from ddoctor.training.starts import starts

STEP_COUNTS = (
    "samples",
    "elements",
    "forwards",
    "backwards",
    "synced_backwards",
    "optimizer_steps",
)
"""Counts of a step with the same name on the tape and in the evidence."""
GPU_COUNTS = ("pageable_bytes", "pinned_bytes", "idle_forwards", "idle_backwards")
"""The same, of steps on a GPU."""
JOIN = "torch/distributed/algorithms/join.py"
MOST_LINES = 40
MOST_GROWTH_POINTS = 200


def sections(run: Run) -> tuple[Section, ...]:
    """All sections of a run; a quantity that nothing recorded has no section."""
    hosts = {record.host for record in run.records}
    host = hosts.pop() if len(hosts) == 1 else ""
    found: list[Section] = [
        _training_run(run),
        ProbeRuns(runs=(), world_size=len(run.records), backend=""),
    ]
    if run.judged:
        lines = Lines(ranks=tuple(_rank_lines(run, *one) for one in run.facts))
        memory = MemoryOverTime(ranks=tuple(_growth(run, *one) for one in run.facts))
        found += [_steps(run), lines, memory, _calls(run)]
        threads = tuple(
            replace(one, rank=record.rank)
            for record, facts in run.facts
            for one in facts.script_threads
        )
        found.append(ScriptThreads(threads=threads))
    if run.known:
        wrappers = tuple(_wrapper(run, rank, one) for rank, of in run.facts for one in of.wrappers)
        found += [Wrapping(wrappers=wrappers), _loading(run), _data(run), _use(run), starts(run)]
    points = tuple(
        replace(point, rank=record.rank) for record, facts in run.facts for point in facts.curve
    )
    if points:
        found.append(LoaderCurve(points=points))
    if (printed := native.log(_ending(run, one) for one in run.records)) is not None:
        found.append(printed)
    of_hosts = (unpack(record.host_sections) for record in run.records if record.host_sections)
    return (*(replace(section, host=host) for section in found), *chain.from_iterable(of_hosts))


def _training_run(run: Run) -> TrainingRun:
    facts = next(iter(run.known.values()), NOTHING_WRITTEN)
    return TrainingRun(
        command=run.command,
        seconds=max(record.ending.time for record in run.records),
        ranks=(
            *(_ending(run, one) for one in run.records),
            *(_lost(rank, last) for rank, last in run.lost.items()),
        ),
        limit=run.limit,
        world=max(record.world for record in run.records),
        optimizers=facts.optimizers,
        framework=facts.framework,
    )


def _lost(rank: int, last: Now | None) -> RankEnding:
    if last is None:
        return RankEnding(rank=rank, host="", pid=0, outcome="vanished", steps=0)
    return RankEnding(
        rank=rank,
        host=last.host,
        pid=last.pid,
        outcome="vanished",
        steps=last.steps,
        doing=last.doing,
    )


def _outcome(run: Run, record: Record) -> Outcome:
    # What it raises only afterwards, as the connection to the first of them is lost, is no failure.
    state = run.hang_states.get(record.rank)
    raised = state is not None and state.leaves and record.ending.exception
    if record.ended_by_us and not record.interrupted and not raised:
        return "hung" if run.hung else "stopped"
    if record.interrupted:
        return "interrupted"
    code = record.ending.exit_code or 0
    if code == 0:
        return "stopped" if record.leaving else "finished"
    # Python ends itself by SIGINT after Ctrl-C, and a library may crash during the exit.
    return "killed" if code < 0 and not record.ending.exception else "failed"


def _ending(run: Run, record: Record) -> RankEnding:
    ending = replace(record.ending, outcome=_outcome(run, record))
    # It does not step itself, such as a rank without inputs under Join, or one whose optimizer
    # never steps: then it loses the connection to those that stop, as asked.
    still = not ending.steps or any(frame.file.endswith(JOIN) for frame in ending.stack)
    if still and ending.echoes and any(_outcome(run, one) == "stopped" for one in run.records):
        return replace(ending, outcome="stopped")
    state = run.hang_states.get(record.rank)
    if state is None or state.over or ending.outcome != "hung":
        return ending
    return replace(ending, doing=state.doing, doing_seconds=state.age)


def _steps(run: Run) -> Steps:
    waits = sorted(run.together.waits.items())
    return Steps(
        ranks=tuple(_rank_steps(run, record) for record in run.records),
        warm_up=run.warm_up,
        clock="cuda" if run.on_device else "host",
        waits=tuple(
            Wait(waiter=waiter, late=late, seconds=round(seconds, 6))
            for (waiter, late), seconds in waits
            if seconds > 0
        ),
    )


def _rank_steps(run: Run, record: Record) -> RankSteps:
    rows = run.rows(record)
    waiting = run.together.waiting[record.rank]
    # A rank that always arrives last never waits: 0 is a measured value.
    waited = run.together.waits
    seconds = {
        name: [row.phases[number] for row in rows] for number, name in enumerate(tape.PHASES)
    }
    collective = seconds.pop("collective")
    counts = (*STEP_COUNTS, *(GPU_COUNTS if run.on_device else ()))
    # A garbage collection during a collective belongs to the collective, not to its phase.
    seconds["waiting"] = [min(w, c) for w, c in zip(waiting, collective, strict=True)]
    seconds["transfer"] = [c - w for w, c in zip(seconds["waiting"], collective, strict=True)]
    return RankSteps(
        place=run.place(record),
        phases=tuple(
            Phase(name=name, seconds=tuple(round(one, 7) for one in seconds[name]))
            for name in PHASES
            if any(seconds[name]) or (waited and name in BETWEEN_RANKS)
        ),
        cpu=tuple(round(row.cpu, 7) for row in rows),
        **{name: tuple(int(row.counts[COUNT[name]]) for row in rows) for name in counts},
    )


def _rank_lines(run: Run, record: Record, facts: Facts) -> RankLines:
    begin, end = run.span(record.rank)
    middle = run.steps[len(run.steps) // 2][record.rank].begin
    taken = [one for one in facts.samples if begin <= one[0] <= end]
    counts = Counter((phase, came, place) for _, phase, came, place in taken)
    late = Counter((phase, came, place) for time, phase, came, place in taken if time >= middle)
    lines = []
    for (phase, came, place), samples in counts.most_common(MOST_LINES):
        lines.append(
            replace(
                facts.places[place],
                phase="waiting" if phase == tape.COLLECTIVE else tape.PHASES[phase],
                after=tape.PHASES[came] if phase == tape.REST else "",
                samples=samples,
                late=late[phase, came, place],
            )
        )
    return RankLines(rank=record.rank, samples=counts.total(), lines=tuple(lines))


def _growth(run: Run, record: Record, facts: Facts) -> Growth:
    begin, end = run.span(record.rank)
    points = [one for one in facts.memory if begin <= one[0] <= end]
    points = points[:: max(1, len(points) // MOST_GROWTH_POINTS)]
    workers = record.workers_memory
    on_device = any(device for _, _, _, device, *_ in points)
    return replace(
        facts.growth,
        rank=record.rank,
        host=record.host,
        times=tuple(round(time - begin, 3) for time, *_ in points),
        steps=tuple(done - run.warm_up for _, done, *_ in points),
        resident=tuple(round(resident, 1) for _, _, resident, *_ in points),
        malloc_free=tuple(round(free, 1) for *_, free, _ in points if free is not None),
        workers=tuple(round(nearest(workers, time)[1], 1) for time, *_ in points if workers),
        workers_free=tuple(round(free, 1) for *_, free in points if workers),
        device=tuple(round(device, 1) for _, _, _, device, *_ in points) if on_device else (),
    )


def nearest(samples: Sequence[tuple[float, float]], time: float) -> tuple[float, float]:
    """The sample, each a time and a value, whose time is the nearest."""
    return min(samples, key=lambda one: abs(one[0] - time))


def _calls(run: Run) -> CollectiveCalls:
    steps = run.rows(run.records[0])
    begin, end = steps[0].number, steps[-1].number
    rows = []
    for record, facts in run.facts:
        for call in facts.calls:
            judged = [one for one in call.steps if begin <= one[0] <= end]
            if judged:
                rows.append(
                    Calls(
                        rank=record.rank,
                        operation=call.operation,
                        place=call.place,
                        of_user=call.of_user,
                        within=call.within,
                        in_steps=len(judged),
                        calls=sum(calls for _, calls, _, _ in judged),
                        bytes=sum(size for _, _, size, _ in judged),
                        seconds=sum(seconds for *_, seconds in judged),
                    )
                )
    return CollectiveCalls(steps=end - begin + 1, calls=tuple(rows))


def _wrapper(run: Run, record: Record, one: Wrapper) -> Wrapper:
    counts = [row.counts for row in run.rows(record)] if one.kind == "ddp" else []
    return replace(
        one,
        rank=record.rank,
        find_unused_seconds=tuple(round(each[COUNT["find_unused"]], 7) for each in counts),
        buffer_broadcast_seconds=tuple(round(each[COUNT["buffers"]], 7) for each in counts),
    )


def _loading(run: Run) -> Loading:
    loaders = []
    for record, facts in run.facts:
        rows = {step[record.rank].number: step[record.rank] for step in run.steps}
        judged = {number: place for place, number in enumerate(rows)}
        for one in facts.loaders:
            waits = [wait for wait in one.waits if wait[0] in judged]
            loaders.append(
                replace(
                    one.loader,
                    rank=record.rank,
                    host=record.host,
                    taken=len(waits),
                    wait_seconds=tuple(round(seconds, 7) for _, seconds, _ in waits),
                    wait_steps=tuple(judged[number] for number, *_ in waits),
                    first_batches=tuple(n for n, (*_, first) in enumerate(waits) if first),
                    collate_in_main=_preparing(one, rows),
                    worker_memory=record.worker_memory if one.loader.num_workers else None,
                )
            )
    return Loading(loaders=tuple(loaders))


def _preparing(one: LoaderFacts, rows: Mapping[int, StepRow]) -> float:
    """Seconds per batch in the typical step.

    Host work costs no time while the GPU is busy. So it counts at most as the time that the stream
    spends outside of all phases.
    """
    steps: dict[int, list[float]] = defaultdict(list)
    for step, seconds in one.preparing:
        if step in rows:
            steps[step].append(seconds)
    each = [
        min(sum(some), rows[step].phases[tape.REST]) / len(some) for step, some in steps.items()
    ]
    return round(median(each), 7) if each else 0.0


def _data(run: Run) -> DataSeen:
    return DataSeen(
        epochs=tuple(
            replace(epoch, rank=record.rank)
            for record, facts in run.facts
            for one in facts.loaders
            for epoch in one.epochs
        ),
        inputs=tuple(
            replace(facts.inputs, rank=record.rank)
            for record, facts in run.facts
            if facts.inputs is not None
        ),
        turns=tuple(
            replace(one, rank=record.rank) for record, facts in run.facts for one in facts.turns
        ),
    )


def _use(run: Run) -> RankUse:
    on_host: dict[str, list[Record]] = defaultdict(list)
    for record in run.records:
        on_host[record.host].append(record)
    hosts = []
    for records in on_host.values():
        used = [(one.cpu_seconds, one.busy_seconds, one.watched_seconds) for one in records]
        for record in records:
            facts = run.known.get(record.rank, NOTHING_WRITTEN)
            hosts.append(
                replace(
                    record.use,
                    threads=facts.threads,
                    gc_enabled=facts.gc_enabled,
                    neighbours=neighbours(used),
                )
            )
    flags = tuple(
        replace(
            facts.flags,
            rank=record.rank,
            empty_cache=_sum(run.rows(record), "empty_cache"),
            collected=_sum(run.rows(record), "collected"),
            checkpointed=_sum(run.rows(record), "checkpointed"),
            profiled=_sum(run.rows(record), "profiled"),
        )
        for record, facts in run.facts
        if facts.flags is not None
    )
    return RankUse(hosts=tuple(hosts), flags=flags)


def _sum(rows: Sequence[StepRow], name: str) -> int:
    return int(sum(row.counts[COUNT[name]] for row in rows))
