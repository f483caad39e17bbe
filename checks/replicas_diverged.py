"""The ranks train different models: their parameters are no longer the same.

In data parallel training all ranks begin with the same parameters and take the same steps, so they
stay equal to the last bit. They part where the model is called past its wrapper, parameters are
added or changed after it was wrapped, the gradients are averaged by hand and not all of them, or
each rank makes its own model and none is sent to the others. Every rank then learns from its own
share of the data alone, and what rank 0 saves is one of several models.

Seen from outside: nothing; the loss falls all the same, and the result is worse than it should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# Replicas are equal bit by bit, and the sums are in double precision: what is left for the order of
# summing and for unlike hardware is far below the rounding of single precision, 6e-8 (IEEE 754).
# Differences of either sign cancel out in a sum, so a larger limit would be blind.
DIFFERENT = 1e-6


def at_the_end(
    wrapping: Wrapping, run: TrainingRun, calls: CollectiveCalls | None, steps: Steps | None
) -> Iterator[Finding]:
    # Of ranks that ended at different steps the parameters differ, too.
    if len({one.steps for one in run.ranks}) != 1 or any(one.fell for one in run.ranks):
        return
    by_rank: dict[int, list[Wrapper]] = {}
    for one in wrapping.wrappers:
        by_rank.setdefault(one.rank, []).append(one)
    if len(by_rank) < 2:
        return
    for models in zip(*by_rank.values(), strict=False):
        if _comparable(models):
            groups = _groups(models)
            # Ranks that are equal in groups of one size hold parts of a model, each several times.
            parts = min(map(len, groups)) > 1 and len(set(map(len, groups))) == 1
            if len(groups) > 1 and not parts:
                yield _finding(models, groups, calls, steps)


def _comparable(models: Sequence[Wrapper]) -> bool:
    """Whether these are meant to be the same model, and are kept equal by every step."""
    first = models[0]
    return all(
        one.kind in ("ddp", "none")
        and (one.kind, one.name, one.parameters) == (first.kind, first.name, first.parameters)
        and one.checksum
        and len(one.checksum) == len(first.checksum)
        # Local SGD lets the replicas part, and averages them now and then.
        and "local" not in one.comm_hook.lower()
        for one in models
    )


def _groups(models: Sequence[Wrapper]) -> list[list[Wrapper]]:
    """Those that are equal, together; the largest group first."""
    groups: list[list[Wrapper]] = []
    for one in models:
        for group in groups:
            if _difference(one, group[0]) <= DIFFERENT:
                group.append(one)
                break
        else:
            groups.append([one])
    return sorted(groups, key=lambda group: -len(group))


def _difference(one: Wrapper, other: Wrapper) -> float:
    """The largest difference of their sums, as a share of the magnitudes; 1: not comparable."""
    rows = zip(one.checksum, other.checksum, one.checksum_scale, strict=True)
    return max(
        1.0 if a != a or b != b else abs(a - b) / scale if scale else abs(a - b)
        for a, b, scale in rows
    )


def _finding(
    models: Sequence[Wrapper],
    groups: Sequence[Sequence[Wrapper]],
    calls: CollectiveCalls | None,
    steps: Steps | None,
) -> Finding:
    model = models[0]
    most = max(_difference(one, groups[0][0]) for group in groups[1:] for one in group)
    apart = [one.rank for group in groups[1:] for one in group]
    alone = len(groups[0]) > 1
    who = (
        f"of {endings.ranks(apart)} differ from those of the other {len(groups[0])} ranks"
        if alone
        else "differ between all ranks"
    )
    reason, confidence, severity = _reason(model, calls, _synced(steps))
    return Finding(
        severity=severity,
        confidence=confidence,
        because=(
            f"the parameters of {model.name} {who}, by up to {most:.1g} of their size where "
            f"replicas are equal to the last bit: {reason}"
        ),
        evidence=tuple(
            Observation(
                name=f"first sum of rank {one.rank}",
                value=one.checksum[0],
                expected=groups[0][0].checksum[0] if alone else None,
            )
            for one in models[:4]
        ),
        where=Where(ranks=tuple(apart) if alone else ()),
        fixes=tuple(_fixes(model)),
    )


def _synced(steps: Steps | None) -> bool | None:
    """Whether DDP reduced gradients at all; None: not seen."""
    if steps is None or not any(rank.synced_backwards for rank in steps.ranks):
        return None
    return any(sum(rank.synced_backwards) for rank in steps.ranks)


def _reason(
    model: Wrapper, calls: CollectiveCalls | None, synced: bool | None
) -> tuple[str, Confidence, Severity]:
    if model.kind == "ddp":
        if synced is False:
            reason = "DDP reduced no gradients, so the model is called past its wrapper"
        else:
            reason = "something changes them that DDP does not send to all"
        return reason, Confidence.CERTAIN, Severity.ERROR
    sent: Mapping[int, int] = _sent(calls)
    if sent and min(sent.values()) >= model.trainable_bytes:
        reason = "the script averages gradients itself, and not all of them or not from the start"
        return reason, Confidence.LIKELY, Severity.ERROR
    reason = (
        "no wrapper and no collective of its own averages the gradients; unless each rank is to "
        "train a model of its own, they learn nothing from one another"
    )
    return reason, Confidence.LIKELY, Severity.WARNING


def _sent(calls: CollectiveCalls | None) -> Mapping[int, int]:
    """Bytes that each rank's own collectives sent in a step."""
    sent: dict[int, int] = {}
    for one in calls.calls if calls is not None and calls.steps else ():
        sent[one.rank] = sent.get(one.rank, 0) + one.bytes // max(1, calls.steps if calls else 1)
    return sent


def _fixes(model: Wrapper) -> Iterator[Fix]:
    if model.kind == "ddp":
        yield Fix(
            summary="call the wrapped model, and change nothing of it after it was wrapped",
            paste=(
                "model = DistributedDataParallel(model)   # when it is complete, and loaded\n"
                "loss = criterion(model(x), y)            # not model.module(x)"
            ),
            language="python",
        )
    else:
        yield Fix(
            summary="wrap it: DDP sends rank 0's parameters to all, and averages the gradients",
            paste="model = DistributedDataParallel(model)",
            language="python",
        )
    yield Fix(
        summary="or send rank 0's parameters to all ranks",
        paste=(
            "with torch.no_grad():\n"
            "    for tensor in model.state_dict().values():\n"
            "        torch.distributed.broadcast(tensor, src=0)"
        ),
        language="python",
        caution="it makes them equal once; what parted them is still there",
    )
