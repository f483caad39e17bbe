"""Finds the activity of a thread by its stack and the table of frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from ddoctor import knowledge
from ddoctor.analysis import loop_lines
from ddoctor.analysis.loop_work import BACKWARD, FORWARD, HOOKS, PASSES, REST
from ddoctor.analysis.stack_activities import COLLECTIVE, Met, activity
from ddoctor.evidence.frames import Frame, shared
from ddoctor.evidence.frameworks import KnownFrameworks
from ddoctor.evidence.live import Activity, Turn
from ddoctor.live.source import Source

MOST_ACTIVITIES = 12
MODULES, HOOK = "torch/nn/modules/module.py", "hook("
"""Where modules call hooks, and what that line says: the same function calls ``forward``."""


def activities(
    stacks: Sequence[tuple[Frame, ...]], source: Source, *, on_gpu: bool = False
) -> tuple[Activity, ...]:
    """Return the activities of a main thread, the most frequent first.

    ``on_gpu``: its process has the CUDA driver loaded.
    """
    seen = [_judged(stack, Met.of(stack, on_gpu=on_gpu), source) for stack in stacks]
    visits = Counter(name for name, _ in groupby(one.name for one in seen))
    paths = [frozenset(one.calls) for one in seen]
    times = Counter(
        frame for before, now in pairwise([frozenset[Frame](), *paths]) for frame in now - before
    )
    return tuple(
        Activity(
            name=one.name,
            samples=samples,
            visits=visits[one.name],
            calls=one.calls,
            times=tuple(times[frame] for frame in one.calls),
            entered=one.entered,
            within=source.blocks(one.calls),
            origins=source.origins(one.calls[: one.entered]) if one.name in PASSES else (),
            makes=one.makes,
            before_skip=source.skip(one.calls),
            skipped_at=source.skipped_at(one.calls) if one.name in (*PASSES, COLLECTIVE) else None,
        )
        for one, samples in _few(Counter(seen)).most_common()
    )


def _judged(stack: Sequence[Frame], met: Met, source: Source) -> Met:
    """What a sample shows by the source: a hook that may return a value takes part in the pass."""
    if met.name == HOOKS:
        hook = met.calls[met.entered]
        called = met.calls[met.entered + 1 :] or (hook,)
        named = called[0] if hook.function.endswith("<lambda>") else hook
        if source.returns(named) or not source.takes_a_gradient(hook):
            return replace(met, name=BACKWARD)
    if met.name == COLLECTIVE and not met.makes:
        return replace(met, makes=source.begun(met.calls[-1]))
    # Python's own frames tell what a function of a library does for the user's line.
    if met.name == REST and stack and not stack[-1].of_user:
        text = source.text(stack[-1].file, stack[-1].line)
        return replace(met, makes=loop_lines.COLLECTS) if loop_lines.collects(text) else met
    if met.name == FORWARD:
        for depth, (outer, inner) in enumerate(pairwise(stack)):
            calls_hooks = not outer.of_user and outer.file.endswith(MODULES)
            if calls_hooks and inner.of_user and HOOK in source.text(outer.file, outer.line):
                called = (*stack[depth + 2 :], inner)
                named = called[0] if inner.function.endswith("<lambda>") else inner
                entered = sum(frame.of_user for frame in stack[: depth + 1])
                return met if source.returns(named) else replace(met, name=HOOKS, entered=entered)
    return met


def _few(met: Counter[Met]) -> Counter[Met]:
    """Merge the rare ones of an activity: they keep the frames that they have in common."""
    kept = Counter(dict(met.most_common(MOST_ACTIVITIES)))
    rare: dict[tuple[str, str], list[Met]] = {}
    for one in met.keys() - kept.keys():
        rare.setdefault((one.name, one.makes), []).append(one)
    for (name, makes), rows in rare.items():
        calls = shared(one.calls for one in rows)
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
