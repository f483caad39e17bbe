"""The history of a run of two ranks, one of which became slower and recovered."""

from __future__ import annotations

from msgspec.structs import replace

from ddoctor.evidence.run_history import RankHistory, RunEvent, RunHistory, Stretch


def stretch(number: int, **phases: float) -> Stretch:
    return Stretch(
        first=1 + 100 * number,
        last=100 + 100 * number,
        begin=10.0 + 100 * number,
        seconds=100.0,
        fastest=0.9,
        median=1.0,
        slowest=1.5,
        phases=phases,
        resident=800.0,
    )


SLOWER = RunEvent(
    event="slower",
    time="2026-01-02T03:04:05+00:00",
    seconds=130.0,
    step=120,
    before=1.0,
    after=1.5,
    phase="loader",
    ranks=(1,),
)
HISTORY = RunHistory(
    ranks=(
        RankHistory(
            rank=0,
            host="a",
            stretches=tuple(stretch(n, forward=0.5, collective=0.5) for n in range(4)),
        ),
        RankHistory(
            rank=1,
            host="a",
            stretches=tuple(stretch(n, forward=0.7, collective=0.3) for n in range(4)),
        ),
    ),
    events=(
        SLOWER,
        replace(SLOWER, event="cause", title="The <b>loader</b> is late", cause="x", fix="y"),
        replace(SLOWER, event="recovered", step=300, lost_seconds=90.0),
        replace(SLOWER, event="ended", step=400),
    ),
    seconds=420.0,
)
