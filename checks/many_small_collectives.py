"""The script calls many small collectives in every step, where one would be enough.

Each collective has a fixed cost that does not depend on its size: all ranks synchronise, and
messages travel between all of them. All-reduces of gradients tensor by tensor, or of metrics number
by number, pay that cost many times while the network is idle.

Symptoms: a trace shows many tiny all-reduces in sequence. Their total time hardly changes with the
size of the model.

To fix it, flatten the tensors and reduce them in one call, let DDP reduce the gradients, or reduce
metrics only every 50 steps.
"""

# Above 150 lines: recorded and live runs name the lines, and a trace has only the calls.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import called_lines, endings, live_collectives, live_cost
from ddoctor.analysis.live_ranks import shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stragglers import ENOUGH_STEPS, enough
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.trace import Traces
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low", "step-loop-overhead")

# Size of DDP's first and smallest bucket (dist._DEFAULT_FIRST_BUCKET_BYTES).
SMALL_BYTES = 2**20
# Healthy loops reduce a handful of values per step: a loss, an accuracy, a stop flag, a norm.
MANY = 10
# Published detectors report a slowdown from 10 %; half of it is a note.
WARNING_SHARE, NOTE_SHARE = 0.10, 0.05

FORWARD = "forward"
# The activations of a batch; a loss, a norm or a count of tokens has some bytes.
ACTIVATION_BYTES = 2**14

MOST_LINES = 4
# Of a live run: a loop over what a model has many of.
CALLERS = 2
WHOLE = ".full_tensor("
OF_PARAMETERS = re.compile(r"param|grad|weights?\b|state_dict", re.IGNORECASE)
# A rank that sleeps longer waits for many bytes: 82 small calls a step slept 1 ms each, buckets of
# 25 MiB 35 ms.
LARGE_SECONDS = 0.008


def of_the_script(
    collective_calls: CollectiveCalls,
    steps: Steps,
    wrapping: Wrapping | None,
    sampled: Lines | None,
) -> Iterator[Finding]:
    counted = collective_calls.steps
    if counted < ENOUGH_STEPS or not steps.step:
        return
    lines = _separable(
        called_lines.on_all_ranks(
            collective_calls,
            lambda one: one.bytes < SMALL_BYTES * one.calls,
            also_by_libraries=True,
        )
    )
    calls, seconds = sum(one.calls for one in lines), sum(one.seconds for one in lines)
    share = seconds / counted / steps.step
    if calls < MANY * counted or share < NOTE_SHARE:
        return
    around = _around(lines, sampled)
    more = f"; with what these lines do around them, {around:.0%}" if around > share else ""
    share = max(share, around)
    first = lines[0]
    size = sum(one.bytes for one in lines) / calls
    whose = first.place if len(lines) == 1 else f"{len(lines)} lines, most at {first.place}"
    models = wrapping.wrappers if wrapping is not None else ()
    yield Finding(
        severity=Severity.WARNING if share >= WARNING_SHARE else Severity.NOTE,
        confidence=Confidence.CERTAIN,
        because=(
            f"each step calls {calls / counted:.0f} small collectives from {whose}, of "
            f"{_size(size)} on average and {1e6 * seconds / calls:.0f} µs each on the rank that "
            f"arrives last: {seconds / counted / steps.step:.0%} of the step{more}"
        ),
        evidence=tuple(
            Observation(
                name=f"{one.operation} at {one.place}",
                value=round(one.calls / counted, 1),
                unit="calls/step",
                expected=1,
                source=f"{1e3 * one.seconds / counted:.2f} ms/step, {_size(one.bytes / one.calls)}",
            )
            for one in lines[:MOST_LINES]
        ),
        cost=Cost(value=round(share, 4), unit="share of step"),
        fixes=tuple(_fixes(first, any(one.kind != "none" for one in models))),
    )


def _around(lines: Sequence[Calls], sampled: Lines | None) -> float:
    """The share of the samples at these lines, on the rank with the fewest.

    Another rank may wait there for one that lags.
    """
    places = {one.place for one in lines}
    return min(
        (
            sum(one.samples for one in rank.lines if f"{one.file}:{one.line}" in places)
            / max(1, rank.samples)
            for rank in (sampled.ranks if sampled is not None else ())
        ),
        default=0.0,
    )


def _separable(lines: Sequence[Calls]) -> Sequence[Calls]:
    """Those that one call could replace.

    Not the sums of activations in a forward pass, as of tensor parallelism, and their gradients: a
    layer needs the sum of the one before. Numbers such as a loss are smaller.
    """
    activations = {
        one.bytes // one.calls
        for one in lines
        if one.within == FORWARD and one.bytes >= ACTIVATION_BYTES * one.calls
    }
    passes = (FORWARD, "backward")
    return [
        one
        for one in lines
        if one.within not in passes or one.bytes // one.calls not in activations
    ]


def in_a_trace(traces: Traces, steps: Steps) -> Iterator[Finding]:
    """Those that no model, backward pass or optimizer calls; a trace does not name their lines."""
    if not enough(steps) or not steps.complete or len(steps.ranks) < 2:
        return
    # All ranks call them; the rank that arrives last does not wait, so the least is the cost.
    one = min(traces.ranks, key=lambda one: one.small_seconds)
    calls, share = one.small_collectives / steps.count, one.small_seconds / sum(steps.seconds)
    if calls < MANY or share < NOTE_SHARE:
        return
    size = one.small_bytes / one.small_collectives
    yield Finding(
        severity=Severity.WARNING if share >= WARNING_SHARE else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"each step calls {calls:.0f} small collectives outside the model and its backward "
            f"pass, of {_size(size)} on average and "
            f"{1e6 * one.small_seconds / one.small_collectives:.0f} µs each on the rank that "
            f"arrives last: {share:.0%} of the step"
        ),
        evidence=(
            Observation(
                name="small collectives",
                value=round(calls, 1),
                unit="calls/step",
                expected=1,
                source=f"{1e3 * one.small_seconds / steps.count:.2f} ms/step, {_size(size)}",
            ),
        ),
        cost=Cost(value=round(share, 4), unit="share of step"),
        fixes=(_flat("where the loop reduces tensor by tensor"), _SELDOM),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    """Those that a loop within a step calls; how large they are is not seen."""
    found = live_collectives.one_by_one(live)
    if found is None or found.line is None or (found.sleep or 0.0) > LARGE_SECONDS:
        return
    if found.items is not None and found.items < MANY:
        return
    share, at = found.share, endings.place(found.line)
    # A helper may get them from the line that calls it.
    named = (found.loop, *(frame.text for frame in found.calls[-CALLERS:]))
    of_parameters = any(map(OF_PARAMETERS.search, named))
    sure = min(found.shares.values()) >= live_cost.SURE and of_parameters
    how = f"the loop `{found.loop}` calls again and again" if found.loop else "logs value by value"
    yield Finding(
        severity=Severity.WARNING if sure else Severity.NOTE,
        confidence=Confidence.LIKELY,
        because=(
            f"all {len(live.ranks)} ranks spend {share:.0%} of the time at {at}"
            f"{endings.quoted(found.line)}, which {how}"
        ),
        evidence=shares("in these collectives", found.shares),
        cost=Cost(value=round(share, 2), unit="share of step"),
        fixes=(
            *_unsynced(found.line),
            *([_on_shards(f"at {at}")] if WHOLE in found.line.text else []),
            *((_flat(f"at {at}"),) if found.operation == "all_reduce" else ()),
            _SELDOM,
        ),
    )


def _fixes(line: Calls, wrapped: bool) -> Iterator[Fix]:
    if line.operation == "barrier":
        yield Fix.python(
            summary=f"remove the barrier at {line.place}",
            paste="# every collective already synchronises all ranks, and so does DDP's backward",
        )
        return
    if not wrapped:
        yield Fix.python(
            summary="for gradients: use DDP, which reduces them in buckets during backward",
            paste="model = DistributedDataParallel(model)",
            caution=f"remove the loop at {line.place}",
        )
    if line.operation == "all_reduce":
        yield _flat(f"at {line.place}")
    if line.operation.startswith("all_gather") and not line.of_user:
        yield _on_shards(f"at {line.place}")
    yield _SELDOM


def _on_shards(where: str) -> Fix:
    return Fix.python(
        summary=f"work on the shards: no rank needs whole parameters {where}",
        paste=(
            "shards = [p.to_local() for p in model.parameters()]  # not p.full_tensor()\n"
            "torch._foreach_lerp_(averages, shards, 0.001)  # averages of shards"
        ),
        caution="gather the whole tensors where they are saved",
    )


def _unsynced(line: Frame) -> Iterator[Fix]:
    if "sync_dist=True" in line.text:
        yield Fix.python(
            summary="log without sync_dist what is equal on all ranks, such as norms of gradients",
            paste="if self.global_step % 50 == 0:\n    self.log(name, value)",
            caution="Lightning exchanges each value, with a barrier before",
        )


def _flat(where: str) -> Fix:
    return Fix.python(
        summary=f"reduce all tensors in one call {where}",
        paste=(
            "# `tensors`: those of the loop, for example [p.grad for p in model.parameters()]\n"
            "flat = torch.cat([tensor.reshape(-1) for tensor in tensors])\n"
            "torch.distributed.all_reduce(flat)\n"
            "sizes = [tensor.numel() for tensor in tensors]\n"
            "for tensor, part in zip(tensors, flat.split(sizes)):\n"
            "    tensor.copy_(part.view_as(tensor))"
        ),
        caution="all tensors must have the same dtype and device",
    )


_SELDOM = Fix.python(
    summary="for metrics: add them up on the device, and reduce them every 50 steps",
    paste=(
        "sums += torch.stack([loss.detach(), correct.detach()])   # in every step\n"
        "if step % 50 == 0:\n"
        "    torch.distributed.all_reduce(sums)"
    ),
)


def _size(size: float) -> str:
    return f"{size / 1024:.0f} KiB" if size >= 1024 else f"{size:.0f} bytes"
