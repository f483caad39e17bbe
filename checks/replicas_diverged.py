"""The parameters differ between ranks, so the ranks train different models.

In data-parallel training all ranks start with the same parameters and take the same steps, so they
stay equal to the last bit. They diverge if the script calls the model without its wrapper, or adds
or changes parameters after wrapping. They also diverge if it averages only some gradients by hand,
or creates a model per rank without broadcasting one. Every rank then learns only from its own shard
of the data, and rank 0 saves one of several models.

Symptoms: no error; the loss falls, but the result is worse than it should be.

To fix it, wrap the complete model in DDP, and call the wrapped model, not ``model.module``.
"""

# Above 150 lines: the comparison of checksums in groups, and one reason per kind of wrapper.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddoctor.analysis import endings
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# Replicas are bitwise equal, and the sums use double precision. The summation order and different
# hardware change far less than the rounding of single precision, 6e-8 (IEEE 754). Differences of
# opposite sign cancel in a sum, so a larger limit would miss real ones.
DIFFERENT = 1e-6


def at_the_end(
    wrapping: Wrapping, run: TrainingRun, calls: CollectiveCalls | None, steps: Steps | None
) -> Iterator[Finding]:
    # The parameters of ranks that ended at different steps always differ.
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
            # Equal ranks in groups of one size hold shards of a model, each of them several times.
            parts = min(map(len, groups)) > 1 and len(set(map(len, groups))) == 1
            if len(groups) > 1 and not parts:
                yield _finding(models, groups, calls, steps)


def _comparable(models: Sequence[Wrapper]) -> bool:
    """Whether these are replicas of one model that every step keeps equal."""
    first = models[0]
    return all(
        one.kind in ("ddp", "none")
        and (one.kind, one.name, one.parameters) == (first.kind, first.name, first.parameters)
        and one.checksum
        and len(one.checksum) == len(first.checksum)
        # Local SGD lets the replicas diverge, and averages them from time to time.
        and "local" not in one.comm_hook.lower()
        for one in models
    )


def _groups(models: Sequence[Wrapper]) -> list[list[Wrapper]]:
    """Groups of equal models, the largest first."""
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
    """The largest difference of their sums relative to their size; 1 if not comparable."""
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
            f"the parameters of {model.name} {who}, by up to {most:.1g} of their size, although "
            f"replicas must be equal to the last bit: {reason}"
        ),
        evidence=tuple(
            Observation(
                name=f"first parameter checksum of rank {one.rank}",
                value=one.checksum[0],
                expected=groups[0][0].checksum[0] if alone else None,
            )
            for one in models[:4]
        ),
        where=Where(ranks=tuple(apart) if alone else ()),
        fixes=tuple(_fixes(model)),
    )


def _synced(steps: Steps | None) -> bool | None:
    """Whether DDP reduced any gradients; None if unknown."""
    if steps is None or not any(rank.synced_backwards for rank in steps.ranks):
        return None
    return any(sum(rank.synced_backwards) for rank in steps.ranks)


def _reason(
    model: Wrapper, calls: CollectiveCalls | None, synced: bool | None
) -> tuple[str, Confidence, Severity]:
    if model.kind == "ddp":
        if synced is False:
            reason = "DDP reduced no gradients, so the script calls the model without its wrapper"
        else:
            reason = "the script changes them outside DDP"
        return reason, Confidence.CERTAIN, Severity.ERROR
    sent: Mapping[int, int] = _sent(calls)
    if sent and min(sent.values()) >= model.trainable_bytes:
        reason = "the script averages gradients itself, but not all of them or not from the start"
        return reason, Confidence.LIKELY, Severity.ERROR
    reason = (
        "no wrapper or collective averages the gradients: correct only if each rank trains a "
        "separate model"
    )
    return reason, Confidence.LIKELY, Severity.WARNING


def _sent(calls: CollectiveCalls | None) -> Mapping[int, int]:
    """Bytes per step that the collectives of the script sent, by rank."""
    sent: dict[int, int] = {}
    for one in calls.calls if calls is not None and calls.steps else ():
        sent[one.rank] = sent.get(one.rank, 0) + one.bytes // max(1, calls.steps if calls else 1)
    return sent


def _fixes(model: Wrapper) -> Iterator[Fix]:
    if model.kind == "ddp":
        yield Fix(
            summary="call the wrapped model, and do not change it after wrapping",
            paste=(
                "model = DistributedDataParallel(model)   # after it is complete and loaded\n"
                "loss = criterion(model(x), y)            # not model.module(x)"
            ),
            language="python",
        )
    else:
        yield Fix(
            summary="wrap the model in DDP: it broadcasts rank 0's parameters, averages gradients",
            paste="model = DistributedDataParallel(model)",
            language="python",
        )
    yield Fix(
        summary="or broadcast rank 0's parameters to all ranks",
        paste=(
            "with torch.no_grad():\n"
            "    for tensor in model.state_dict().values():\n"
            "        torch.distributed.broadcast(tensor, src=0)"
        ),
        language="python",
        caution="makes them equal once, but does not remove the cause",
    )
