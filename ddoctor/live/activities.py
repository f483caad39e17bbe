"""Finds the activity of a thread by its stack and the table of frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, takewhile

from ddoctor import knowledge
from ddoctor.analysis.loop_work import BACKWARD, HOOKS, PASSES
from ddoctor.analysis.stack_activities import Met, activity
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.frameworks import KnownFrameworks
from ddoctor.evidence.live import Activity, Turn
from ddoctor.live.source import Source

MOST_ACTIVITIES = 12


def activities(
    stacks: Sequence[tuple[Frame, ...]], source: Source, *, on_gpu: bool = False
) -> tuple[Activity, ...]:
    """Return the activities of a main thread, the most frequent first.

    ``on_gpu``: its process has the CUDA driver loaded.
    """
    seen = [_judged(Met.of(stack, on_gpu=on_gpu), source) for stack in stacks]
    visits = Counter(name for name, _ in groupby(one.name for one in seen))
    return tuple(
        Activity(
            name=one.name,
            samples=samples,
            visits=visits[one.name],
            calls=one.calls,
            entered=one.entered,
            within=source.blocks(one.calls),
            origins=source.origins(one.calls[: one.entered]) if one.name in PASSES else (),
            makes=one.makes,
            before_skip=source.skip(one.calls),
        )
        for one, samples in _few(Counter(seen)).most_common()
    )


def _judged(met: Met, source: Source) -> Met:
    if met.name == HOOKS and not source.takes_a_gradient(met.calls[met.entered]):
        return replace(met, name=BACKWARD)
    return met


def _few(met: Counter[Met]) -> Counter[Met]:
    """Merge the rare ones of an activity: they keep the frames that they have in common."""
    kept = Counter(dict(met.most_common(MOST_ACTIVITIES)))
    rare: dict[tuple[str, str], list[Met]] = {}
    for one in met.keys() - kept.keys():
        rare.setdefault((one.name, one.makes), []).append(one)
    for (name, makes), rows in rare.items():
        ways = zip(*(one.calls for one in rows), strict=False)
        calls = tuple(same[0] for same in takewhile(lambda frames: len({*frames}) == 1, ways))
        entered = min(len(calls), *(one.entered for one in rows))
        kept[Met(name, calls, entered, makes)] += sum(met[one] for one in rows)
    return kept


def turns(stacks: Sequence[tuple[Frame, ...]], *, on_gpu: bool = False) -> tuple[Turn, ...]:
    """Return the activities of a main thread in the order of time."""
    rows = groupby(activity(stack, on_gpu=on_gpu) for stack in stacks)
    return tuple(Turn(name=name, samples=sum(1 for _ in met)) for name, met in rows)


def framework(stacks: Sequence[tuple[Frame, ...]]) -> str:
    """Return the framework that runs the loop of a main thread; empty: none."""
    table: KnownFrameworks = knowledge.load(KnownFrameworks)
    return table.used({frame.file for stack in stacks for frame in stack})
