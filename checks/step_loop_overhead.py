"""The training loop itself takes a notable part of the step, outside the model.

Collecting garbage, emptying the allocator's cache, reading values back (``.item()``), logging and
torch's debug modes are cheap once and expensive in every step, on every rank. On a GPU, anything
that makes the host wait also leaves the device without work for a while after it. So do many small
kernels, if the host takes longer to launch one than the device to run it.

Symptoms: GPUs are busy half of the time though the data is there; a profile shows gaps between the
steps; the same loop without its extras is faster.

To fix it, do this work, and that of hooks, in one step of a hundred, and switch debug modes off.
``torch.compile``, a fused optimizer or a larger batch makes kernels fewer and larger.
"""

# Above 150 lines: recorded steps, a live run, the source, and the two ways in which a GPU idles.

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from statistics import fmean

from ddoctor.analysis import endings, live_cost, live_loop, loop_lines, printed_times
from ddoctor.analysis.live_ranks import shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.loop_work import LoopLine, Place
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.stack_activities import TRACES
from ddoctor.analysis.step_loop import StepLoop
from ddoctor.analysis.stragglers import SLOWER_BY, enough
from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.steps import Lines, RankSteps, Steps
from ddoctor.evidence.trace import SyncCall, Traces
from ddoctor.evidence.training import RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)

# Lines with less than half of the samples do not explain most of the time.
MOST = 0.5
FEW = 3
BESIDE = (Place.EARLIER, Place.LATER, Place.HOOK)
# Both ways: to the GPU, and back by ``tensor.cpu()``.
COPIES = ("aten::to", "aten::_to_copy", "aten::copy_")
# CUPTI and the annotations of torch cost a few microseconds at each launch, which is about what a
# launch itself costs; so half of a smaller share may be the profiler's.
FAR = 2 * live_cost.SURE
LATE_LAUNCHES = "The GPU waits for the host, which launches its kernels one by one"
LARGER_KERNELS = (
    Fix.python(
        summary="compile the model: fewer kernels, launched together",
        paste='model = torch.compile(model, mode="reduce-overhead")',
        caution="the first steps are slow; every new input shape compiles again",
    ),
    Fix.python(
        summary="give each kernel more to do: a larger batch, and a fused optimizer",
        paste="torch.optim.AdamW(model.parameters(), fused=True)",
    ),
)
ANOMALY = "torch looks for anomalies in each step, which takes a notable part of it"
NO_ANOMALY = Fix.python(
    summary="switch anomaly detection off, except for the step that fails",
    paste="torch.autograd.set_detect_anomaly(False)",
)
# A pass may end with a short kernel, just over or not yet.
NEARLY_ALL = 0.9
# Kernels ran for 8 to 54 % of the step in ten loops whose passes ended so (an H100, measurements of
# 2026-11-27).
LEAST_IDLE = 0.4
IN_MODEL = ("forward", "backward")
WAITS = "the host waits for the GPU there, so the GPU has no work prepared for the next step"
# Names of calls, what they do, and the fix. What they cost depends on the length of a step.
IN_EACH_STEP = (
    (
        ("torch.cuda.empty_cache", "gc.collect"),
        "torch reuses its cache, and Python collects by itself, so this only takes time",
        "remove it, or do it in one step of a hundred",
    ),
    (
        ("torch.cuda.synchronize",),
        WAITS,
        "measure in one step of a hundred",
    ),
    ((".item", ".cpu"), WAITS, "read values back in one step of a hundred"),
    (
        ("print",),
        "every rank writes a line, and waits for the GPU if the line shows a value of it",
        "print in one step of a hundred, on rank 0",
    ),
)

ON_GRADIENTS = re.compile(r"\.grad\b")
SUMS = re.compile(r"(?P<sum>[\w.]+) \+= |(?P<list>[\w.]+)\.append\(")
# As the source has it, with no other condition.
ON_RANK_0 = re.compile(
    r"if (?:[\w.]*rank(?:\(\))? == 0|not [\w.]*rank"
    r"|[\w.]*(?:is_main|is_master|main_process|master_process)\w*(?:\(\))?):"
)


def beside_the_model(loop: StepLoop) -> Iterator[Finding]:
    known = loop.seconds(*BESIDE)
    every = known + loop.seconds(Place.WITHIN, Place.UNKNOWN)
    if not every or every < SLOWER_BY * loop.step:
        return
    sure = known >= MOST * every
    places = BESIDE if sure else (Place.WITHIN, Place.UNKNOWN)
    named = loop.lines(*places)[:FEW]
    if not named:
        return
    seconds = known if sure else every
    share = seconds / loop.step
    does = any(line.does not in loop_lines.OF_ANY_TEXT for line in named)
    yield Finding(
        severity=Severity.WARNING if sure and (does or share >= live_cost.SURE) else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        title=_title(named[0]),
        because=(
            f"all ranks spend {1000 * seconds:.3g} ms of a step of {1000 * loop.step:.3g} ms in "
            f"{_around(named[0])}, mostly at {', '.join(map(_told, named))}"
            + ("" if sure else "; check whether each step needs this")
        ),
        evidence=(
            Observation(
                name="time outside the model in a step",
                value=round(1000 * seconds, 2),
                unit="ms",
                source="mean step of the rank with the least",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_seldom(named[0], share),),
    )


def other_models(loop: StepLoop) -> Iterator[Finding]:
    """A model that computes in each step outside of the passes that train.

    A teacher must; what is the same in several steps need not.
    """
    seconds = loop.seconds(Place.MODEL)
    share = seconds / loop.step if loop.step else 0.0
    if share < live_cost.SURE:
        return
    line = loop.lines(Place.MODEL)[0]
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        title="A model computes in each step outside of the training's own passes",
        because=(
            f"all ranks spend {1000 * seconds:.3g} ms of a step of {1000 * loop.step:.3g} ms in a "
            f"model, mostly at {_told(line)}; check whether each step needs it, or whether several "
            "steps could share its results"
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="compute once what several steps use alike",
                paste=f"with torch.no_grad():\n    shared = ...  # of {line.frame.file}:"
                f"{line.frame.line}, before the loop over these steps",
            ),
        ),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    work = live_loop.around(live)
    if work is None:
        return
    lines = work.lines[:FEW]
    who = "all ranks spend" if len(live.ranks) > 1 else "the run spends"
    yield Finding(
        severity=live_cost.severity(work.share),
        confidence=Confidence.LIKELY,
        title=_title(lines[0]),
        because=(
            f"{who} {work.share:.0%} of the time in {_around(lines[0])}: "
            + ", ".join(map(_told, lines))
        ),
        evidence=shares("time at these lines", work.shares),
        cost=Cost(value=round(work.share, 2), unit="share of step"),
        fixes=(_seldom(lines[0], work.share),),
    )


def hooks_in_a_profile(times: PrintedTimes) -> Iterator[Finding]:
    """By the table of Lightning's profiler."""
    for table in times.tables:
        share = table.in_hook / table.whole if table.whole else 0.0
        if share < live_cost.SURE or table.count < printed_times.BATCHES:
            continue
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{printed_times.whence(table)}: {table.hook} takes "
            f"{printed_times.part(table, table.in_hook)}",
            evidence=(printed_times.row(table, table.hook, share, live_cost.SURE),),
            where=Where(ranks=table.ranks),
            cost=Cost(value=round(share, 3), unit="share of step"),
            fixes=(
                Fix.python(
                    summary="do it in one step of a hundred",
                    paste="if self.global_step % 100 == 0:\n    ...  # what the hook does",
                ),
            ),
        )
        return


def reading_back_in_a_trace(traces: Traces, steps: Steps) -> Iterator[Finding]:
    """Calls that wait for the GPU: then it has nothing to do until the host's next launch."""
    if not enough(steps):
        return
    idle = {one.rank: sum(call.idle_seconds for call in one.syncs) for one in traces.ranks}
    one = min(traces.ranks, key=lambda one: idle[one.rank])
    share = idle[one.rank] / sum(steps.seconds)
    if share < live_cost.TOLD:
        return
    calls = [call for call in one.syncs if call.idle_seconds][:FEW]
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        title="The host waits for the GPU in each step, and then the GPU waits for the host",
        because=(
            f"the GPU has nothing to do for {share:.0%} of the step after calls that wait for it: "
            f"{', '.join(_waits(call, steps) for call in calls)}"
        ),
        evidence=tuple(
            Observation(
                name=f"GPU idle after {call.operator or call.call}",
                value=round(1000 * call.idle_seconds / steps.count, 3),
                unit="ms per step",
                source=f"rank {one.rank}, the rank with the least; {call.calls} calls",
            )
            for call in calls
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_without_waiting(calls[0], share),),
    )


def _without_waiting(call: SyncCall, share: float) -> Fix:
    reads = (
        "total += loss.detach()  # in each step; instead of loss.item()\n"
        "if step % 100 == 0:\n"
        "    print(total.item() / 100)\n"
        "    total.zero_()"
    )
    sends = "batch = batch.to(device, non_blocking=True)  # to the GPU, from pinned memory\n"
    return Fix.python(
        summary="keep values on the GPU, and read them back in one step of a hundred",
        paste=(sends if call.operator in COPIES else "") + reads,
        caution=endings.place(call.line) or "profile(with_stack=True) names the line",
        expected_gain=f"up to {share:.0%} of the step",
    )


def _waits(call: SyncCall, steps: Steps) -> str:
    at = endings.at(call.line) if call.line is not None else ""
    times = f"{call.calls / steps.count:.3g} times a step"
    return f"{call.operator or call.call}{at} {times}"


def launches_in_a_run(steps: Steps, lines: Lines | None) -> Iterator[Finding]:
    """Passes at whose ends the GPU has run all that was launched; how long it idles is unknown."""
    if not enough(steps) or not all(map(_keeps_up, steps.ranks)):
        return
    passes = min(rank.share(*IN_MODEL) for rank in steps.ranks)
    if passes < live_cost.SURE:
        return
    yield Finding(
        severity=live_cost.severity(LEAST_IDLE * passes),
        confidence=Confidence.LIKELY,
        title=LATE_LAUNCHES,
        because=(
            f"the passes through the model take {passes:.0%} of a step of {1000 * steps.step:.3g} "
            "ms, and at their ends the GPU has nothing left to do: it runs each kernel as soon as "
            f"the host launches it{_launches_at(lines)}; torch.profiler shows for how long it idles"
        ),
        evidence=(
            Observation(
                name="passes that end with an idle GPU",
                value=round(100 * min(map(_idle, steps.ranks))),
                unit="% of all",
                source=f"{steps.count} steps, the rank with the least",
            ),
        ),
        fixes=LARGER_KERNELS,
    )


def _launches_at(lines: Lines | None) -> str:
    """The lines of the model sampled most often, to follow a sentence; empty: there are none."""
    met: Counter[str] = Counter()
    for rank in lines.ranks if lines is not None else ():
        for line in (one for one in rank.lines if one.phase == "forward"):
            met[f"{endings.place(line.frame)}{endings.quoted(line.frame)}"] += line.samples
    most = [place for place, _ in met.most_common(FEW)]
    return f", mostly at {', '.join(most)}" if most else ""


def _idle(rank: RankSteps) -> float:
    ends = sum(rank.forwards) + sum(rank.backwards)
    return (sum(rank.idle_forwards) + sum(rank.idle_backwards)) / ends if ends else 0.0


def _keeps_up(rank: RankSteps) -> bool:
    """Whether its GPU waits for launches throughout: both kinds of passes end so."""
    ends = ((rank.idle_forwards, rank.forwards), (rank.idle_backwards, rank.backwards))
    return all(idle and sum(idle) >= NEARLY_ALL * sum(passes) > 0 for idle, passes in ends)


def launches_in_a_trace(traces: Traces, steps: Steps) -> Iterator[Finding]:
    """The GPU has run all that was launched, and the host launches the next kernel only then."""
    gpus = [one for one in traces.ranks if one.kernels]
    if not enough(steps) or not gpus:
        return
    one = min(gpus, key=lambda one: one.late_launch_seconds)
    share = one.late_launch_seconds / sum(steps.seconds)
    if share < live_cost.SURE:
        return
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY if share >= FAR else Confidence.POSSIBLE,
        title=LATE_LAUNCHES,
        because=(
            f"for {share:.0%} of the step the GPU has nothing to do, since the host launches the "
            f"next kernel too late: {one.kernels / steps.count:.0f} kernels per step of "
            f"{1000 * steps.step:.3g} ms"
            + ("" if share >= FAR else "; the profiler slows the host, too: see without it")
        ),
        evidence=(
            Observation(
                name="GPU idle until the next launch",
                value=round(100 * share),
                unit="% of the step",
                source=f"rank {one.rank}, the rank with the least",
            ),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=LARGER_KERNELS,
    )


def in_the_source(script: Script, steps: Steps | None) -> Iterator[Finding]:
    """Calls that every step of the training loop makes; what they cost, only a run shows."""
    if steps is not None and enough(steps):
        return  # what was measured during the training is better evidence
    told: set[str] = set()
    for names, why, summary in IN_EACH_STEP:
        every = [one for one in script.of(*names) if one.in_each_step and one.on_all_ranks]
        found = [one for one in every if one.at.place not in told]
        told |= {one.at.place for one in every}
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=f"every step of the training loop runs {shown(found[0].at)}{more}: {why}",
                fixes=(
                    _summed(found[0])
                    or Fix.python(
                        summary=summary, paste=f"if step % 100 == 0:\n    {found[0].at.text}"
                    ),
                ),
            )


def _summed(call: SourceCall) -> Fix | None:
    """Of a value that each step adds to a sum or a list: the sum has to get all of them."""
    found = SUMS.match(call.at.text) if call.name == ".item" else None
    if found is None:
        return None
    kept = call.at.text.replace(".item()", ".detach()")
    read = found["sum"] or f"torch.stack({found['list']}).mean()"
    return Fix.python(
        summary="add it up on the GPU, and read the result back in one step of a hundred",
        paste=f"{kept}  # in each step\nif step % 100 == 0:\n    print({read}.item())",
        caution="what is kept is then a tensor: read it back wherever the script uses it",
    )


def printed_on_one_rank(script: Script, steps: Steps | None) -> Iterator[Finding]:
    """Rank 0 waits for its GPU to show a loss, and the others wait for rank 0."""
    if steps is not None and enough(steps):
        return
    losses = {(one.at.file, one.at.function, one.on) for one in script.of(".backward") if one.on}
    for one in script.of("print"):
        shows = any(
            re.search(rf"\b{re.escape(name)}\b", text)
            for file, function, name in losses
            if (file, function) == (one.at.file, one.at.function)
            for text in one.arguments
        )
        branch = one.branch.text if one.branch is not None else ""
        # The branch itself may hold in few steps, as may what leads to it.
        every = one.step == ("one-rank",) and not one.unless and ON_RANK_0.fullmatch(branch)
        if shows and every:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=f"every step of the training loop runs {shown(one.at)} on rank 0: {WAITS}",
                fixes=(
                    Fix.python(
                        summary="print in one step of a hundred",
                        paste=f"if step % 100 == 0:\n    {one.at.text}",
                    ),
                ),
            )
            return


def anomaly_mode_in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    if use is not None:
        return  # what was measured during the training is better evidence
    for one in script.of("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly"):
        on = one.name.endswith(".detect_anomaly") or one.argument("mode", 0) == "True"
        if on and not one.test and one.on_all_ranks:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                title=ANOMALY,
                because=(
                    f"{shown(one.at)} switches anomaly detection on: each operation keeps its "
                    "traceback, and torch checks each gradient for NaN; it is for debugging only"
                ),
                fixes=(NO_ANOMALY,),
            )
            return


def _told(line: LoopLine) -> str:
    does = f" ({line.does})" if line.does else ""
    inner = f", in {endings.place(line.inner)}" if line.inner is not None else ""
    return f"{endings.place(line.frame)}{endings.quoted(line.frame)}{inner}{does}"


def anomaly_mode(use: RankUse) -> Iterator[Finding]:
    ranks = tuple(flags.rank for flags in use.flags if flags.anomaly)
    if ranks:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            title=ANOMALY,
            because=(
                "torch.autograd.set_detect_anomaly is on, on "
                f"{endings.ranks(ranks, every=use.flags)}: each operation keeps its "
                "traceback, and torch checks each gradient for NaN; it is for debugging only"
            ),
            where=Where(ranks=() if len(ranks) == len(use.flags) else ranks),
            fixes=(NO_ANOMALY,),
        )


def anomaly_mode_in_a_live_run(live: LiveState) -> Iterator[Finding]:
    """Samples in which an operation keeps its traceback; the checks for NaN cost more."""
    found = {
        one: sum(row.samples for row in one.seen.activities if row.makes == TRACES)
        for one in live.ranks
    }
    taken = {one: samples / one.seen.samples for one, samples in found.items() if samples >= FEW}
    # A stack may change while it is read, and then a line of the user's is missing.
    least = min(taken.values()) if taken and len(taken) == len(live.ranks) else 0.0
    if least < live_cost.TOLD / 2 or not live.moves:
        return
    share = fmean(taken.values())
    yield Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        title=ANOMALY,
        because=(
            f"operations of the model keep their traceback for {share:.0%} of the time, as "
            "torch.autograd.set_detect_anomaly makes them; torch then checks each gradient for "
            "NaN, too; it is for debugging only"
        ),
        evidence=shares("time in tracebacks", taken),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(NO_ANOMALY,),
    )


def _around(line: LoopLine) -> str:
    hook = line.does == loop_lines.IN_A_HOOK
    return "hooks of the model" if hook else "the loop around the model"


def _title(line: LoopLine) -> str:
    hook = line.does == loop_lines.IN_A_HOOK
    return "Hooks of the model take a notable part of the step" if hook else ""


def _alone(line: LoopLine) -> bool:
    """Whether the line does only that."""
    try:
        (statement,) = ast.parse(line.frame.text).body
    except (SyntaxError, ValueError):
        return False
    return bool(line.does) and isinstance(statement, ast.Expr | ast.Assign)


def _seldom(line: LoopLine, share: float) -> Fix:
    place, gain = f"{line.frame.file}:{line.frame.line}", f"up to {share:.0%} of the step"
    if line.does == loop_lines.IN_A_HOOK:
        return Fix.python(
            summary="if not each step needs this, register the hook for one step of a hundred",
            paste=(
                "handles = []\n"
                f"if step % 100 == 0:  # {place}\n"
                "    handles = [one.register_hook(hook) for one in parameters]\n"
                "loss.backward()\n"
                "for handle in handles:\n"
                "    handle.remove()"
            ),
            expected_gain=gain,
        )
    if ON_GRADIENTS.search(line.frame.text):
        return Fix.python(
            summary="work on all gradients at once, not on one row or parameter after another",
            paste=(
                "torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)\n"
                "gradients = [one.grad for one in model.parameters()]\n"
                "torch._foreach_mul_(gradients, 0.5)  # any operation on all of them"
            ),
            caution=place,
            expected_gain=gain,
        )
    if line.does == loop_lines.COLLECTS:
        summary = "leave collection to Python, or collect every 1000 steps on all ranks"
    elif line.does == "empties the allocator's cache":
        summary = "remove it: torch reuses its cache, and must otherwise allocate again"
    elif line.does not in loop_lines.OF_ANY_TEXT:
        summary = "do it in one step of a hundred, and read values back only there"
    else:
        summary = "if not each step needs this, do it in one step of a hundred"
    # A line that does more may also do the training itself.
    text = line.frame.text if _alone(line) else "...  # what can wait"
    return Fix.python(
        summary=summary,
        paste=f"if step % 100 == 0:  # {place}\n    {text}",
        expected_gain=gain,
    )
