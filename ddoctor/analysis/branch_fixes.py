"""The fix for a test whose result differs between ranks."""

from __future__ import annotations

import re

from ddoctor.models import Fix

# The test of a branch in one line.
TEST = re.compile(r"(?:el)?if (.+?):(?:\s*continue)?$")


def let_all_decide(condition: str = "condition", where: str = "") -> Fix:
    """All ranks take the branch, or none; ``where``: the place of the test, where known."""
    return Fix.python(
        summary="decide on all ranks alike: reduce the condition first",
        paste=(
            f"{where and f'# instead of the test at {where}{chr(10)}'}"
            f"any_rank = torch.tensor(float({condition}), device=device)\n"
            "torch.distributed.all_reduce(any_rank, op=torch.distributed.ReduceOp.MAX)\n"
            "if any_rank.item():   # on all ranks, or on none\n"
            "    ..."
        ),
        caution="with ReduceOp.MIN, only if it holds on all ranks; item() waits for the GPU",
    )
