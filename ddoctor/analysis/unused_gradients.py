"""Gradients that DDP sends for parameters which never get one."""

from __future__ import annotations

from statistics import fmean, median

from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapper, Wrapping

MOST_OF_THE_BYTES = 0.5
"""From this share on, they are why the transfer takes long."""


def sent_in_vain(wrapping: Wrapping | None) -> Wrapper | None:
    """The model of which most bytes are such; None: there is none.

    DDP sends zeros for them in each step (torch/csrc/distributed/c10d/reducer.cpp).
    """
    for one in wrapping.wrappers if wrapping is not None else ():
        found = one.kind == "ddp" and one.unused_bytes and one.inspected_steps
        if found and one.unused_bytes >= MOST_OF_THE_BYTES * one.trainable_bytes:
            return one
    return None


def transfers(steps: Steps) -> list[float]:
    """Seconds of each step, in the mean of the ranks, in which all are in a transfer."""
    return list(map(fmean, zip(*(rank.spent("transfer") for rank in steps.ranks), strict=True)))


def share_of_transfers(steps: Steps | None) -> float:
    """Their share of the median step, 0 to 1; 0: not known."""
    if steps is None or not steps.complete or not steps.count:
        return 0.0
    pairs = zip(transfers(steps), steps.seconds, strict=True)
    return median(a / b for a, b in pairs)
