"""The micro-batch is too small: the GPU idles, and its free memory fits a larger one.

Every step has fixed costs: kernel launches, one read and write of parameters and gradients, and the
all-reduce of all gradients. With few samples these costs are a large share of the step. Larger
batches share the same costs, until the GPU is busy.

Symptoms: GPU utilisation is high, since some kernel always runs, but power draw is low and much GPU
memory is free. A step with twice the samples takes hardly longer.

To fix it, raise ``batch_size``. Lower gradient accumulation by the same factor to keep the global
batch size.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.describe import GIB
from ddoctor.evidence.memory_headroom import MARGIN, MemoryHeadroom
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

# Batch sizes are doubled (as in Lightning's BatchSizeFinder, mode "power"), so a batch size that
# does not fit twice gives no finding.
ROOM = 2
# Smaller gains are noise: published detectors report slowdowns from 10 % (GREYHOUND, ATC'25).
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
    room = f", which leave {left / GIB:.3g} of {rank.limit / GIB:.3g} GiB free" if left else ""
    yield Finding(
        # A gain on the CPU does not prove a gain on the GPU that it simulates.
        severity=Severity.NOTE if headroom.played else Severity.WARNING,
        confidence=Confidence.POSSIBLE if headroom.played else Confidence.LIKELY,
        because=(
            f"micro-batches of {now}{room}, train {before:.4g} samples/s; micro-batches of {safe}, "
            f"which fit with {MARGIN:.0%} to spare, train {after:.4g}"
            + (" (measured on this CPU; the GPU may differ)" if headroom.played else "")
        ),
        evidence=(
            Observation(
                name=f"throughput at {now}",
                value=before,
                unit="samples/s",
                expected=after,
                source=f"measured with {safe}, with gradient all-reduce, without data loading",
            ),
            Observation(name="largest micro-batch that fits", value=headroom.largest),
        ),
        cost=Cost(value=1 - before / after, unit="share of time"),
        fixes=(
            Fix.python(
                summary=f"raise batch_size to {safe}, or to the power of two below",
                paste=f"DataLoader(..., batch_size={safe})  # now {now}, on each rank",
                caution=(
                    "lower gradient accumulation by the same factor to keep the global batch size; "
                    "without accumulation, each step sees more samples: adapt the learning rate"
                ),
                expected_gain=f"{before:.4g} to {after:.4g} samples/s",
            ),
        ),
    )
