"""The error that is seen only says that another rank is gone; what ended that one comes first.

When a rank of a run fails, all others fail as well: in the collective that they waited in, with
messages of gloo or NCCL about a closed connection, a remote process, a timeout. There are many of
them, they are long, and they are often printed last or by rank 0. None of them is the cause.

Seen from outside: "Connection closed by peer", "ncclRemoteError", "Watchdog caught collective
operation timeout", and somewhere above, on another rank, the one error that differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where


def from_training(run: TrainingRun) -> Iterator[Finding]:
    echoes = run.echoes
    if not echoes:
        return
    seen = endings.ranks(one.rank for one in echoes)
    said = f"{seen} failed with '{echoes[0].words}'"
    left = [one for one in run.ranks if one.outcome == "finished"]
    if run.failures:
        first = run.failures[0]
        yield _finding(
            echoes,
            (first,),
            Severity.NOTE,
            Confidence.CERTAIN,
            f"{said}, which is no fault of their own: {endings.who(first)} failed "
            f"{'before' if first.time <= echoes[0].time else 'as well'}, with "
            f"'{first.words or f'exit code {first.exit_code}'}'",
            Fix(
                summary=f"read rank {first.rank}'s error, and no other",
                paste=endings.traceback(first),
                language="text",
            ),
        )
    elif left:
        gone = endings.ranks(one.rank for one in left)
        yield _finding(
            echoes,
            left,
            Severity.ERROR,
            Confidence.LIKELY,
            f"{said} {endings.stood(echoes[0])}: {gone} had come to the end of the script after "
            f"{endings.steps(left[0])}, and so did not come to that collective",
            Fix(
                summary="give all ranks the same number of steps, or leave together",
                paste=(
                    "from torch.distributed.algorithms.join import Join\n\n"
                    "with Join([model]):   # of DDP: ranks that are done answer all the same\n"
                    "    train(model, loader)"
                ),
                language="python",
            ),
        )
    else:
        yield _finding(
            echoes,
            (),
            Severity.ERROR,
            Confidence.LIKELY,
            f"{said}, which only tells of another rank, and what ended that one was not seen"
            f"{endings.others(run, echoes)}",
            Fix(
                summary="let every rank write down its own error, with its time",
                paste=(
                    "from torch.distributed.elastic.multiprocessing.errors import record\n\n"
                    "@record   # torchrun then prints the first error of all ranks at the end\n"
                    "def main(): ..."
                ),
                language="python",
            ),
        )


def _finding(
    echoes: Sequence[RankEnding],
    at: Sequence[RankEnding],
    severity: Severity,
    confidence: Confidence,
    because: str,
    fix: Fix,
) -> Finding:
    return Finding(
        severity=severity,
        confidence=confidence,
        because=because,
        evidence=tuple(
            Observation(name=f"error of rank {one.rank}", value=one.words) for one in echoes[:4]
        ),
        where=Where(ranks=tuple(one.rank for one in at)),
        fixes=(fix,),
    )
