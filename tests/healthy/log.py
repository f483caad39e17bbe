"""What the log of a sound run on several hosts says."""

from __future__ import annotations

from ddoctor.evidence.log import Log, LogEvent
from ddoctor.evidence.section import Section

SECTIONS: tuple[Section, ...] = (
    Log(
        files=("train.log",),
        lines=2000,
        ranks=8,
        several_hosts=True,
        events=(
            LogEvent(
                pattern="nccl-interfaces",
                text="NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
                file="train.log",
                line=12,
                rank=0,
                values={"interfaces": "[0]eth0:10.0.0.1<0>"},
            ),
            LogEvent(
                pattern="nccl-network",
                text="NCCL INFO Using network IB",
                file="train.log",
                line=14,
                rank=0,
                values={"network": "IB"},
            ),
            LogEvent(
                pattern="progress",
                text="Tokenizing: 100%|##########| 500/500",
                file="train.log",
                line=20,
                values={"task": "Tokenizing", "done": "500", "total": "500"},
            ),
        ),
    ),
)
