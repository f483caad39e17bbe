"""Parameters that begin equal on all ranks and end different, while others stay equal.

Ranks that average gradients by hand leave these out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddoctor.analysis.describe import few
from ddoctor.evidence.wrapping import ParameterSum, Wrapper

# Replicas are bitwise equal, and the sums use double precision. The summation order and different
# hardware change far less than the rounding of single precision, 6e-8 (IEEE 754). Differences of
# opposite sign cancel in a sum, so a larger limit would miss real ones.
DIFFERENT = 1e-6
MOST_NAMED = 3


@dataclass(frozen=True)
class LeftOut:
    """The names of parameters that begin equal and end different."""

    names: Sequence[str]
    kept: int
    """The number of those that the steps changed, and that stayed equal."""
    others_begin_apart: bool
    """Whether the ranks also have parameters that begin different, and so are meant to."""

    @property
    def fewer(self) -> bool:
        """Whether they are the smaller part."""
        return len(self.names) < self.kept

    @property
    def shown(self) -> str:
        """The first of them, for a sentence."""
        return few(self.names, MOST_NAMED)


def left_out(models: Sequence[Wrapper]) -> LeftOut | None:
    """Of one model on all ranks; None: there are none, or no others stayed equal."""
    names = [tuple(row.name for row in one.parameter_sums) for one in models]
    if len(models) < 2 or not names[0] or len(set(names)) != 1:
        return None
    apart, kept, own = [], [], []
    for rows in zip(*(one.parameter_sums for one in models), strict=True):
        if not _equal(rows, [row.first for row in rows]):
            own.append(rows[0].name)
        elif _equal(rows, [row.last for row in rows]):
            kept += [rows[0].name] if rows[0].first != rows[0].last else []
        else:
            apart.append(rows[0].name)
    return LeftOut(apart, len(kept), bool(own)) if apart and kept else None


def _equal(rows: Sequence[ParameterSum], sums: Sequence[float]) -> bool:
    scale = max(row.magnitude for row in rows) or 1.0
    return max(sums) - min(sums) <= DIFFERENT * scale
