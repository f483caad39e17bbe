"""An optimizer that the script writes itself takes much longer than its parameters explain.

In Python, each operation on a tensor costs some microseconds, however small the tensor is. An
optimizer that works row by row, or on many small parameters one after the other, spends its time
between the operations. The GPU, or the other ranks, wait meanwhile.

Symptoms: the step takes as long with a small batch as with a large one; a profile shows thousands
of tiny operations after the backward pass.

To fix it, use an optimizer of torch, which updates all parameters at once, or whole tensors.
"""

# Above 150 lines: recorded and live runs, and optimizers that decompose matrices.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.live_ranks import LiveRankState, shares
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stack_activities import OPTIMIZER
from ddoctor.analysis.stragglers import enough
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation

EXPLAINS = ("scaling-efficiency-low",)

# AdamW reads four numbers for each parameter and writes three; the temporaries of an optimizer
# that computes in single operations are three more.
TIMES_MOVED = 10
# Bytes in a second of one slow core, and of a slow GPU (gpus.toml has 300 to 8,000 GB/s).
OF_A_CPU, OF_A_GPU = 2e9, 2e11
FAR = 3.0
"""Times as long as all of that: then the numbers are not what takes the time."""
# Where the parameters' size is not known, a share that whole tensors hardly reach.
LOUD = 0.4
MOST = 0.5
FEW = 3
CALLS = ".step("
"""The text of a line that leaves the work to another optimizer."""
# Muon, Shampoo and their like compute, and need the time.
COMPUTES = re.compile(r"@|matmul|mm\(|einsum|svd|eig|qr\(|cholesky|inv", re.IGNORECASE)
# Shampoo and K-FAC decompose their averages in one of ten to hundred steps (arXiv 2309.06497).
DECOMPOSES = re.compile(r"svd|eig|cholesky|inv", re.IGNORECASE)


def in_a_run(steps: Steps, lines: Lines, wrapping: Wrapping) -> Iterator[Finding]:
    if not enough(steps):
        return
    met: Counter[Frame] = Counter()
    found: list[float] = []
    sizes: dict[int, int] = {}
    for rank in steps.ranks:
        rows = lines.of(rank.place.rank, OPTIMIZER)
        own = [row for row in rows if not row.inner and CALLS not in row.text]
        for row in own:
            met[row.frame] += row.samples
        whole = sum(row.samples for row in rows)
        mine = sum(row.samples for row in own)
        found.append(rank.share(OPTIMIZER) * mine / whole if whole else 0.0)
    for wrapper in wrapping.wrappers:
        sizes[wrapper.rank] = sizes.get(wrapper.rank, 0) + wrapper.trainable_bytes
    share, size = min(found, default=0.0), max(sizes.values(), default=0)
    rate = OF_A_GPU if any(rank.idle_forwards for rank in steps.ranks) else OF_A_CPU
    needed = TIMES_MOVED * size / rate
    seconds = share * steps.step
    if share < live_cost.SURE or not size or seconds < FAR * needed:
        return
    if _most_of(met, COMPUTES):
        if met and _most_of(met, DECOMPOSES):
            spent = (
                f"all ranks spend {1000 * seconds:.3g} ms of a step of {1000 * steps.step:.3g} ms"
            )
            yield _of_decompositions(spent, met, share)
        return
    yield _finding(
        f"all ranks spend {1000 * seconds:.3g} ms of a step of {1000 * steps.step:.3g} ms",
        f"; to read and write the {size / MIB:.3g} MiB of parameters with their states takes "
        f"{1000 * needed:.2g} ms",
        met,
        share,
        (
            Observation(
                name="own optimizer in a step",
                value=round(1000 * seconds, 2),
                unit="ms",
                source="mean step of the rank with the least",
            ),
        ),
    )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if not live.moves or live.straggler is not None:
        return
    met: Counter[Frame] = Counter()
    own: dict[LiveRankState, float] = {}
    for one in live.ranks:
        rows = [row for row in one.seen.activities if row.name == OPTIMIZER and row.line]
        # Frames after those that lead into the optimizer's step are within it.
        within = [row for row in rows if 0 < row.entered < len(row.calls)]
        own[one] = sum(row.samples for row in within) / one.seen.samples
        for row in within:
            if row.line is not None and CALLS not in row.line.text:
                met[row.line] += row.samples
    share = fmean(own.values()) if own else 0.0
    who = "all ranks spend" if len(live.ranks) > 1 else "the run spends"
    if met and share >= live_cost.SURE and _most_of(met, DECOMPOSES):
        yield _of_decompositions(f"{who} {share:.0%} of the time", met, share)
    if share < LOUD or _most_of(met, COMPUTES):
        return
    yield _finding(
        f"{who} {share:.0%} of the time", "", met, share, shares("time in the optimizer", own)
    )


def _most_of(met: Counter[Frame], does: re.Pattern[str]) -> bool:
    """Whether most lines do this, or nothing was met."""
    found = sum(samples for line, samples in met.items() if does.search(line.text))
    return found >= MOST * met.total()


def _named(met: Counter[Frame]) -> str:
    found = (f"{endings.place(line)}{endings.quoted(line)}" for line, _ in met.most_common(FEW))
    return ", ".join(found)


def _of_decompositions(spent: str, met: Counter[Frame], share: float) -> Finding:
    return Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        title="An optimizer decomposes matrices in each step, which takes a large part of it",
        because=(
            f"{spent} in an optimizer of the script, mostly at {_named(met)}; these averages "
            "change slowly"
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="compute roots and eigenvectors in one of many steps, and keep them",
                paste='if state["step"] % 20 == 0:\n    state["root"] = root(state["average"])\n'
                'state["step"] += 1  # in the state, not in a local variable',
                expected_gain=f"up to {share:.0%} of the step",
            ),
        ),
    )


def _finding(
    spent: str,
    needed: str,
    met: Counter[Frame],
    share: float,
    evidence: Iterable[Observation],
) -> Finding:
    return Finding(
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY,
        because=(
            f"{spent} in an optimizer that the script writes itself, mostly at "
            f"{_named(met)}{needed}"
        ),
        evidence=tuple(evidence),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(
            Fix.python(
                summary="use an optimizer of torch, which updates all parameters at once",
                paste="optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
                expected_gain=f"up to {share:.0%} of the step",
            ),
            Fix.python(
                summary="or let each operation take whole tensors, of all parameters together",
                paste="torch._foreach_mul_(averages, 0.9)\n"
                "torch._foreach_add_(averages, gradients, alpha=0.1)",
            ),
        ),
    )
