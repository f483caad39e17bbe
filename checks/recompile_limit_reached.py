"""torch.compile gave up on a function, which runs uncompiled now.

A compiled function holds for the shapes, types and Python numbers that it was compiled with. Other
ones need another compilation, each of them takes seconds to minutes, and ranks that compile at
different steps wait for each other. After eight of them torch stops, and the function runs without
being compiled for the rest of the run.

Symptoms: slow first steps; ``torch._dynamo hit config.recompile_limit`` in the log; the step takes
as long as without torch.compile.

To fix it, pass what changes as a tensor, let shapes be dynamic, or pad to few shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.training import GivenUp, RankUse
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

# As in "tensor 'x' size mismatch at index 0. expected 4, actual 5", or a guard on a size.
SHAPES = re.compile(r"size mismatch|stride mismatch|\.size\(\)|\.shape\b")


def found(use: RankUse) -> Iterator[Finding]:
    ranks = [one for one in use.flags if one.given_up]
    if not ranks:
        return
    one = max((row for rank in ranks for row in rank.given_up), key=lambda row: row.seconds)
    reason = f", the last time as this did not hold: {one.reason}" if one.reason else ""
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"the function{endings.at(one.frame)} was compiled {one.times} times in "
            f"{one.seconds:.3g} s{reason}; now it runs uncompiled"
        ),
        evidence=(
            Observation(
                name=f"compilations of {one.frame.function}",
                value=one.times,
                expected=1,
                source="torch._dynamo.utils.get_compilation_metrics()",
            ),
        ),
        where=Where(ranks=() if len(ranks) == len(use.flags) else tuple(r.rank for r in ranks)),
        cost=Cost(value=one.seconds, unit="s"),
        fixes=_fixes(one),
    )


def _fixes(one: GivenUp) -> tuple[Fix, ...]:
    number = bool(one.reason) and not SHAPES.search(one.reason)
    return (_TENSOR, _DYNAMIC) if number else (_DYNAMIC, _TENSOR)


_DYNAMIC = Fix.python(
    summary="let shapes be dynamic, or pad the batches to few lengths",
    paste="model = torch.compile(model, dynamic=True)",
    caution='TORCH_LOGS="recompiles" names what changes each time',
)
_TENSOR = Fix.python(
    summary="pass numbers that change as tensors",
    paste="scale = torch.tensor(scale, device=device)\noutput = model(batch, scale)",
    caution="a number that the module counts up itself belongs into a buffer",
)
