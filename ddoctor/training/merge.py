"""Merge the records of all ranks into evidence sections."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from ddoctor.cluster.supervisor import unpack
from ddoctor.evidence.loading import CurvePoint, DataSeen, LoaderCurve, Loading
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.section import Section
from ddoctor.evidence.steps import (
    BETWEEN_RANKS,
    PHASES,
    Growth,
    HotLine,
    Lines,
    MemoryOverTime,
    Phase,
    RankLines,
    RankSteps,
    Steps,
    Wait,
)
from ddoctor.evidence.training import (
    Outcome,
    RankEnding,
    RankHost,
    RankUse,
    TrainingRun,
)
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from ddoctor.recorder import tape
from ddoctor.recorder.recorded import Facts, LoaderFacts
from ddoctor.recorder.tape import COUNT, StepRow
from ddoctor.training.messages import Record
from ddoctor.training.run import Run
from ddoctor.training.starts import starts

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
        found += [_steps(run), _lines(run), _memory(run), _calls(run)]
    if any(run.facts):
        found += [_wrapping(run), _loading(run), _data(run), _use(run), starts(run)]
    points = tuple(_curve(run))
    if points:
        found.append(LoaderCurve(points=points))
    return (*(replace(section, host=host) for section in found), *_hosts(run))


def _hosts(run: Run) -> Iterator[Section]:
    """The host sections that local rank 0 collected on each host."""
    for record in run.records:
        if record.host_sections:
            yield from unpack(record.host_sections)


def _training_run(run: Run) -> TrainingRun:
    known = [facts for _, facts in run.facts]
    return TrainingRun(
        command=run.command,
        seconds=max(record.seconds for record in run.records),
        ranks=(*(_ending(run, one) for one in run.records), *(_unheard(rank) for rank in run.lost)),
        limit=run.limit,
        asked_steps=run.asked_steps,
        world=max(record.world for record in run.records),
        optimizers=known[0].optimizers if known else (),
        framework=known[0].framework if known else "",
    )


def _outcome(run: Run, record: Record) -> Outcome:
    if record.ended_by_us and not record.interrupted:
        return "hung" if run.hung else "stopped"
    if record.interrupted:
        return "interrupted"
    if record.exit_code == 0:
        return "stopped" if record.leaving else "finished"
    # Python ends itself by SIGINT after Ctrl-C, and a library may crash during the exit.
    raised = record.ending is not None and record.ending.exception
    return "killed" if (record.exit_code or 0) < 0 and not raised else "failed"


def _ending(run: Run, record: Record) -> RankEnding:
    ending = record.ending
    state = run.hang_states.get(record.rank)
    if state is not None and not state.over:
        doing, doing_seconds = state.doing, state.age
    else:
        doing, doing_seconds = record.doing, record.doing_seconds
    return RankEnding(
        rank=record.rank,
        host=record.host,
        pid=record.pid,
        outcome=_outcome(run, record),
        # The first one precedes the optimizer's first step and belongs to no recorded step.
        steps=record.done + 1 if record.done else 0,
        exit_code=record.exit_code,
        exception=ending.exception if ending else "",
        message=ending.message if ending else "",
        stack=record.stack or (ending.stack if ending else ()),
        time=record.seconds,
        doing=doing,
        doing_seconds=doing_seconds,
        collectives=record.calls,
        children_seconds=record.children_seconds,
        printed=record.printed,
    )


def _unheard(rank: int) -> RankEnding:
    return RankEnding(rank=rank, host="", pid=0, outcome="hung", steps=0, doing="unknown")


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
    rows = [step[record.rank] for step in run.steps]
    waiting = run.together.waiting[record.rank]
    # A rank that always arrives last never waits: 0 is a measured value.
    waited = run.together.waits
    seconds: dict[str, list[float]] = {}
    for number, name in enumerate(tape.PHASES):
        seconds[name] = [row.phases[number] for row in rows]
    collective = seconds.pop("collective")
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
        samples=_counted(rows, "samples"),
        elements=_counted(rows, "elements"),
        forwards=_counted(rows, "forwards"),
        backwards=_counted(rows, "backwards"),
        synced_backwards=_counted(rows, "synced"),
        optimizer_steps=_counted(rows, "optimizer_steps"),
    )


def _counted(rows: Sequence[StepRow], name: str) -> tuple[int, ...]:
    return tuple(int(row.counts[COUNT[name]]) for row in rows)


def _lines(run: Run) -> Lines:
    return Lines(ranks=tuple(_rank_lines(run, *one) for one in run.facts))


def _rank_lines(run: Run, record: Record, facts: Facts) -> RankLines:
    begin, end = run.span(record.rank)
    counts = Counter((phase, place) for time, phase, place in facts.samples if begin <= time <= end)
    lines = []
    for (phase, place), samples in counts.most_common(MOST_LINES):
        where = facts.places[place]
        name = tape.PHASES[phase]
        lines.append(
            HotLine(
                phase="waiting" if name == "collective" else name,
                file=where.file,
                line=where.line,
                function=where.function,
                text=where.text,
                samples=samples,
                inner=where.inner,
            )
        )
    return RankLines(rank=record.rank, samples=counts.total(), lines=tuple(lines))


def _memory(run: Run) -> MemoryOverTime:
    return MemoryOverTime(ranks=tuple(_growth(run, *one) for one in run.facts))


def _growth(run: Run, record: Record, facts: Facts) -> Growth:
    begin, end = run.span(record.rank)
    points = [one for one in facts.memory if begin <= one[0] <= end]
    points = points[:: max(1, len(points) // MOST_GROWTH_POINTS)]
    workers = [_nearest(record.workers_memory, time) for time, *_ in points]
    on_device = any(device for *_, device in points)
    device = facts.device_memory
    return Growth(
        rank=record.rank,
        host=record.host,
        times=tuple(round(time - begin, 3) for time, *_ in points),
        steps=tuple(done - run.warm_up for _, done, *_ in points),
        resident=tuple(round(resident, 1) for _, _, resident, _ in points),
        workers=tuple(round(one, 1) for one in workers if one is not None)
        if all(one is not None for one in workers)
        else (),
        device=tuple(round(device, 1) for *_, device in points) if on_device else (),
        device_between=device.between if device else None,
        device_peak=device.peak if device else None,
        device_reserved=device.reserved if device else None,
        device_total=device.total if device else None,
        graph_tensors=facts.graph_tensors,
        graph_tensors_before=facts.graph_tensors_before,
        graph_depth=facts.graph_depth,
        graph_depth_before=facts.graph_depth_before,
    )


def _nearest(samples: Sequence[tuple[float, float]], time: float) -> float | None:
    return min(samples, key=lambda one: abs(one[0] - time))[1] if samples else None


def _calls(run: Run) -> CollectiveCalls:
    first, last = (min(run.steps[place]) for place in (0, -1))
    begin, end = run.steps[0][first].number, run.steps[-1][last].number
    rows = []
    for record, facts in run.facts:
        for call in facts.calls:
            before = max((one for one in call.steps if one[0] < begin), default=(0, 0, 0, 0.0))
            after = max((one for one in call.steps if one[0] <= end), default=before)
            if after[1] > before[1]:
                rows.append(
                    Calls(
                        rank=record.rank,
                        operation=call.operation,
                        place=call.place,
                        of_user=call.of_user,
                        calls=after[1] - before[1],
                        bytes=after[2] - before[2],
                        seconds=after[3] - before[3],
                    )
                )
    return CollectiveCalls(steps=end - begin + 1, calls=tuple(rows))


def _wrapping(run: Run) -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            _wrapper(run, record, one) for record, facts in run.facts for one in facts.wrappers
        )
    )


def _wrapper(run: Run, record: Record, one: Wrapper) -> Wrapper:
    rows = [step[record.rank] for step in run.steps] if one.kind == "ddp" else []
    return replace(
        one,
        rank=record.rank,
        find_unused_seconds=_seconds(rows, "find_unused"),
        buffer_broadcast_seconds=_seconds(rows, "buffers"),
    )


def _seconds(rows: Sequence[StepRow], name: str) -> tuple[float, ...]:
    return tuple(round(row.counts[COUNT[name]], 7) for row in rows)


def _loading(run: Run) -> Loading:
    loaders = []
    for record, facts in run.facts:
        rows = {step[record.rank].number: step[record.rank] for step in run.steps}
        for one in facts.loaders:
            waits = tuple(round(seconds, 7) for step, seconds in one.waits if step in rows)
            loaders.append(
                replace(
                    one.loader,
                    rank=record.rank,
                    host=record.host,
                    taken=len(waits),
                    wait_seconds=waits,
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
        )
    )


def _curve(run: Run) -> Iterator[CurvePoint]:
    for record, facts in run.facts:
        yield from (replace(point, rank=record.rank) for point in facts.curve)


def _use(run: Run) -> RankUse:
    on_host: dict[str, list[Record]] = defaultdict(list)
    for record in run.records:
        on_host[record.host].append(record)
    hosts = []
    for records in on_host.values():
        hosts += [_host(run, record, _neighbours(records)) for record in records]
    flags = tuple(
        replace(
            facts.flags,
            rank=record.rank,
            empty_cache=_sum(run, record, "empty_cache"),
            collected=_sum(run, record, "collected"),
            checkpointed=_sum(run, record, "checkpointed"),
        )
        for record, facts in run.facts
        if facts.flags is not None
    )
    return RankUse(hosts=tuple(hosts), flags=flags)


def _host(run: Run, record: Record, neighbours: float | None) -> RankHost:
    gc = tape.GC
    rows = [step[record.rank] for step in run.steps]
    return replace(
        record.use,
        neighbours=neighbours,
        gc_seconds=tuple(round(row.phases[gc], 7) for row in rows),
    )


def _neighbours(records: Sequence[Record]) -> float | None:
    """CPUs of a host that other processes used: busy CPUs minus those of the ranks."""
    seconds = max(record.watched_seconds for record in records)
    if seconds <= 0:
        return None
    busy = max(record.busy_seconds for record in records)
    own = sum(record.cpu_seconds for record in records)
    return round(max(0.0, busy - own) / seconds, 3)


def _sum(run: Run, record: Record, name: str) -> int:
    return int(sum(step[record.rank].counts[COUNT[name]] for step in run.steps))
