"""The Xid codes of NVIDIA's driver (``ddoctor/knowledge/xids.toml``)."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.section import Known, Part


class Xid(Part, frozen=True, kw_only=True):
    """One code of NVIDIA's catalogue."""

    code: int
    title: str
    blames: Literal["board", "memory", "nvlink", "gpu-or-driver", "application", "information"]
    remedy: Literal["restart-run", "reset-gpu", "restart-machine", "check-power", "none"]
    """NVIDIA's immediate action for the code."""
    source: str


class KnownXids(Known, frozen=True, kw_only=True):
    """The codes that show on their own whether hardware is at fault."""

    table: ClassVar[str] = "xids.toml"

    xids: tuple[Xid, ...]

    def get(self, code: int) -> Xid | None:
        """The row of a code; None: not in the table."""
        return next((xid for xid in self.xids if xid.code == code), None)
