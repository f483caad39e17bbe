"""The fix for a test whose result differs between ranks."""

from __future__ import annotations

import re

from ddoctor.models import Fix

# The test of a branch in one line.
TEST = re.compile(r"(?:el)?if (.+?):(?:\s*continue)?$")


def let_all_decide(condition: str = "condition", where: str = "", then: str = "...") -> Fix:
    """All ranks take the branch, or none.

    ``where``: the place of the test, where known; ``then``: the line that the test leads to.
    """
    return Fix.python(
        summary="decide on all ranks alike: reduce the condition first",
        paste=(
            f"{where and f'# instead of the test at {where}{chr(10)}'}"
            f"any_rank = torch.tensor(float({condition}), device=device)\n"
            "torch.distributed.all_reduce(any_rank, op=torch.distributed.ReduceOp.MAX)\n"
            "if any_rank.item():   # on all ranks, or on none\n"
            f"    {then}"
        ),
        caution="with ReduceOp.MIN, only if it holds on all ranks; item() waits for the GPU",
    )


def leave_together(stop: str = "stop") -> Fix:
    """All ranks leave the training loop where one of them would."""
    return Fix.python(
        summary="leave the loop on all ranks alike",
        paste=(
            f"stop = torch.tensor(float({stop}), device=device)  # what this rank decides\n"
            "torch.distributed.all_reduce(stop, op=torch.distributed.ReduceOp.MAX)\n"
            "if stop.item():   # on all ranks, or on none\n"
            "    break"
        ),
        caution="and reduce the measured value, so that all ranks keep the same best"
        if stop == "stop"
        else "item() waits for the GPU: every 50 steps are enough",
    )
