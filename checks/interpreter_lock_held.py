"""Another thread of the script keeps Python's interpreter from the thread that trains.

Python runs one thread of a process at a time. A thread that computes in pure Python, or in a
library that keeps the lock, gives it away every 5 ms only, if another thread asks for it. The main
thread asks each time that an operator of torch returns, hundreds of times in a step. So one busy
thread, for metrics, logs or data, can make all steps several times as long, and on a GPU it delays
the launch of each kernel. It is found in runs on CPUs.

Symptoms: steps take longer with no phase in particular; the main thread is hardly on a CPU though
it computes; without the thread all is fast.

To fix it, do this work in a process (``multiprocessing``, workers of a DataLoader), or less often.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ddoctor.analysis import endings, interpreter_lock, live_cost, polling
from ddoctor.analysis.interpreter_lock import Loss
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stragglers import ENOUGH_STEPS
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.threads import ScriptThreads
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Where

# All phases in which the main thread asks for the interpreter take longer.
EXPLAINS = (
    *("straggler-rank", "uneven-work-per-rank", "rank0-extra-work", "step-loop-overhead"),
    *("dataloader-bottleneck", "communication-bound-step", "scaling-efficiency-low"),
    "helpers-take-cpus",
)


def while_training(steps: Steps, script_threads: ScriptThreads, use: RankUse) -> Iterator[Finding]:
    if steps.count >= ENOUGH_STEPS:
        losses = interpreter_lock.in_steps(steps, script_threads.threads, use)
        yield from _held(losses, steps.ranks)


def in_a_live_run(live: LiveState, script_threads: tuple[ScriptThreads, ...]) -> Iterator[Finding]:
    threads = [one for section in script_threads for one in section.threads]
    yield from _held(interpreter_lock.in_a_live_run(live, threads), live.ranks)


def _held(losses: Iterable[Loss], every: Collection[object]) -> Iterator[Finding]:
    held = [one for one in losses if one.share >= live_cost.TOLD]
    if not held:
        return
    most = max(held, key=lambda one: one.share)
    yield Finding(
        severity=live_cost.severity(most.share),
        confidence=Confidence.LIKELY,
        because=(
            f"the main thread of {endings.ranks(one.place.rank for one in held)} computes, and is "
            f"on no CPU, for at least {most.share:.0%} of the time, while another thread uses "
            f"{most.cpus:.2g} CPUs at {endings.place(most.line)}{endings.quoted(most.line)}"
        ),
        evidence=tuple(
            Observation(
                name=f"CPUs of the thread at {endings.place(one.line)}, rank {one.place.rank}",
                value=round(one.cpus, 2),
                source=f"the main thread loses {one.share:.0%} of the time",
            )
            for one in held
        ),
        where=Where.of([one.place for one in held], every=every),
        cost=Cost(value=round(most.share, 3), unit="share of step"),
        fixes=(
            *polling.sleeping(most.line),
            Fix.python(
                summary="do its work in a process, which has an interpreter for itself",
                paste=(
                    "import multiprocessing\n\n"
                    'context = multiprocessing.get_context("spawn")\n'
                    "queue = context.Queue(100)\n"
                    "context.Process(target=work, args=(queue,), daemon=True).start()\n"
                    f"# work: what {endings.place(most.line)} does with each item of the queue"
                ),
                caution="or do it in one of a hundred steps; start it before CUDA is used",
                expected_gain=f"at least {most.share:.0%} of the step",
            ),
        ),
    )
