"""Functions that torch.compile compiled again and again until it gave up."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from typing import Any

from ddoctor.evidence import redaction
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import GivenUp
from ddoctor.recorder import places
from ddoctor.recorder.harmless import harmless

MOST_REASON = 200
LIMIT = "recompile limit"
"""What torch says of a function that it gave up."""


@harmless
def given_up() -> tuple[GivenUp, ...]:
    """Return them, by the list that torch keeps of its last 64 compilations.

    Its rows are numbered, ``0/3`` is the fourth compilation of one function. The row in which it
    gives up lacks the function's name (torch/_dynamo/utils.py, CompilationMetrics).
    """
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    rows = [] if dynamo is None else list(dynamo.get_compilation_metrics())
    lasts = {_number(one): one for one in rows if LIMIT in (one.fail_reason or "").lower()}
    found = (
        _given_up([one for one in rows if _number(one) == number and one.co_name], last)
        for number, last in lasts.items()
    )
    return tuple(one for one in found if one is not None)


def _given_up(compiled: list[Any], last: Any) -> GivenUp | None:
    if not compiled:
        return None  # longer ago than the list reaches
    file, line = compiled[0].co_filename, compiled[0].co_firstlineno
    text = redaction.text(linecache.getline(file, line).strip())
    return GivenUp(
        frame=Frame(file=places.short(file), line=line, function=compiled[0].co_name, text=text),
        times=len(compiled),
        seconds=round(sum(one.entire_frame_compile_time_s or 0.0 for one in compiled), 2),
        reason=_reason(compiled, last),
    )


def _reason(compiled: Iterable[Any], last: Any) -> str:
    """The guard that failed, as ``scale == 0.006``; empty: this torch does not say it.

    It says ``0/6: scale == 0.006  # h = scale * h  # net.py:20 in forward``.
    """
    for one in (last, *compiled):
        for told in (getattr(one, "recompile_reason", None) or "").splitlines()[:1]:
            reason = told.partition(": ")[2].partition("  #")[0].strip()
            return redaction.text(reason[:MOST_REASON])
    return ""


def _number(row: Any) -> str:
    """The number of its function; empty: it has none."""
    return (row.compile_id or "").partition("/")[0]
