"""The micro-batch is so small that the device idles, and memory for a larger one is free.

A step costs some time whatever its samples: kernels are launched one after the other, parameters
and gradients are read and written once, all gradients are exchanged. With few samples that is much
of the step. With more of them the same costs are shared by more work, until the device is busy.

Seen from outside: utilisation is high, since some kernel always runs, while power is low and much
of the memory is free; a step with twice the samples takes hardly longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.memory_headroom import MARGIN, MemoryHeadroom
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

GIB = 2**30
# Sizes go by doubling (the way of Lightning's BatchSizeFinder, mode "power"): of what does not fit
# twice nothing is said.
ROOM = 2
# Less is noise: the published detectors count a slowdown from 10 % on (GREYHOUND, ATC'25).
FASTER = 1.1


def in_a_sweep(headroom: MemoryHeadroom) -> Iterator[Finding]:
    now, safe = headroom.current, headroom.safe
    if now is None or safe < ROOM * now:
        return
    before, after = headroom.samples_per_second(now), headroom.samples_per_second(safe)
    if before is None or after is None or after < FASTER * before:
        return
    rank = headroom.tightest
    left = rank.left(now)
    room = f", which leaves {left / GIB:.3g} of {rank.limit / GIB:.3g} GiB free" if left else ""
    measured = "measured on this CPU: on the GPU it may be otherwise" if headroom.played else ""
    yield Finding(
        # What is faster on a CPU need not be so on the GPU that it stands for.
        severity=Severity.NOTE if headroom.played else Severity.WARNING,
        confidence=Confidence.POSSIBLE if headroom.played else Confidence.LIKELY,
        because=(
            f"with {now} samples at a time{room}, {before:.4g} samples/s are trained; with {safe}, "
            f"which fit with {MARGIN:.0%} to spare, {after:.4g}"
            + (f" ({measured})" if measured else "")
        ),
        evidence=(
            Observation(
                name=f"throughput at {now}",
                value=before,
                unit="samples/s",
                expected=after,
                source=f"measured with {safe}, gradients exchanged and nothing loaded",
            ),
            Observation(name="largest micro-batch that fits", value=headroom.largest),
        ),
        cost=Cost(value=1 - before / after, unit="share of time"),
        fixes=(
            Fix(
                summary=f"{safe} samples at a time, or the power of two below",
                paste=f"DataLoader(..., batch_size={safe})  # now {now}, on each rank",
                language="python",
                caution=(
                    "where gradients are accumulated, do so less often by as much, and the "
                    "training is the same; else a step sees more samples, and the learning rate "
                    "has to follow"
                ),
                expected_gain=f"{before:.4g} to {after:.4g} samples/s",
            ),
        ),
    )
