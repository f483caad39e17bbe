"""Flight records made by hand: what each rank has called in its process group."""

from __future__ import annotations

import msgspec

from ddoctor.evidence.flight_records import Call, FlightRecords, GroupCalls, RankRecords
from ddoctor.evidence.live import LiveLook
from tests.live_look import SECONDS

GROUP = "nccl 0 (default_pg)"


def call(
    number: int, operation: str = "all_reduce", elements: int = 1000, *, over: bool = False
) -> Call:
    """Of one tensor of single precision; a barrier brings none."""
    return Call(
        number=number,
        operation=operation,
        sizes=() if operation == "barrier" else ((elements,),),
        types=() if operation == "barrier" else ("Float",),
        state="completed" if over else "started",
        over=over,
    )


def records(
    rank: int,
    *calls: Call,
    group: str = GROUP,
    told_by: str = "control socket",
    idle: float = 60.0,
    age: float = 0.0,
) -> RankRecords:
    """Of a rank that is in one group."""
    return RankRecords(
        rank=rank,
        pid=100 + rank,
        told_by=told_by,
        age_seconds=age,
        idle_seconds=idle,
        groups=(GroupCalls(group=group, calls=calls),),
    )


def recorded(
    *ranks: RankRecords, host: str = "node-0", nccl: tuple[str, ...] = ()
) -> FlightRecords:
    """Of all ranks of a job, on one host."""
    return FlightRecords(host=host, ranks=ranks, nccl=nccl)


def unseen(live: LiveLook, *, main_cpu: float = 0.0) -> LiveLook:
    """The same run where to read a stack is not permitted; of the rest the kernel tells."""
    ranks = tuple(
        msgspec.structs.replace(
            one,
            state="sleeping",
            main_cpu_seconds=main_cpu,
            asleep=1.0 - main_cpu / SECONDS,
            samples=0,
            stack=(),
            still=False,
            activities=(),
            turns=(),
            unseen="ptrace is forbidden",
        )
        for one in live.ranks
    )
    return msgspec.structs.replace(live, ranks=ranks)
