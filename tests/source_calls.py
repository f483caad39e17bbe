"""Calls of a script's source, as evidence, that several checks ask for."""

from __future__ import annotations

from ddoctor.evidence.source_lines import SourceCall, SourceLine

WRAPS = SourceCall(
    name="torch.nn.parallel.DistributedDataParallel",
    at=SourceLine(file="train.py", line=9, text="model = DDP(net)"),
)
"""What makes a script one of plain DDP."""
