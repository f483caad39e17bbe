"""The parameters differ between ranks, so the ranks train different models.

In data-parallel training all ranks start with the same parameters and take the same steps, so they
stay equal to the last bit. They diverge if the script calls the model without its wrapper, or adds
or changes parameters after wrapping. They also diverge if it averages only some gradients by hand,
or creates a model per rank without broadcasting one. Every rank then learns only from its own shard
of the data, and rank 0 saves one of several models.

Symptoms: no error; the loss falls, but the result is worse than it should be.

To fix it, wrap the complete model in DDP, and call the wrapped model, not ``model.module``.
"""

# Above 150 lines: a recorded run shows weights that differ, and the source what makes them differ.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isnan

from ddoctor.analysis import endings, exchanged_models
from ddoctor.analysis.describe import few
from ddoctor.analysis.done_by_one_rank import done_by_one_rank
from ddoctor.analysis.partly_averaged import DIFFERENT, MOST_NAMED, left_out
from ddoctor.analysis.prepared_models import prepared_names
from ddoctor.analysis.script_source import PLAIN, WRAPPERS, is_plain, shown
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# Whose parameters an optimizer gets.
OWNER = re.compile(r"(?P<model>[\w.]+)\.parameters\(\)")


def at_the_end(
    wrapping: Wrapping,
    run: TrainingRun,
    calls: CollectiveCalls | None,
    steps: Steps | None,
    script: Script | None,
) -> Iterator[Finding]:
    if not _ended_alike(run):
        return
    by_rank: dict[int, list[Wrapper]] = {}
    for one in wrapping.wrappers:
        by_rank.setdefault(one.rank, []).append(one)
    if len(by_rank) < 2:
        return
    told: set[tuple[str, str]] = set()
    for models in zip(*by_rank.values(), strict=False):
        groups = []
        if _comparable(models) and not exchanged_models.is_part(models[0], calls):
            groups = _groups(models)
        # Equal ranks in groups of one size hold shards of a model, each of them several times.
        if len(groups) < 2 or (len(groups[0]) > 1 and len(set(map(len, groups))) == 1):
            continue
        model = models[0]
        most = max(_difference(one, groups[0][0]) for group in groups[1:] for one in group)
        apart = [one.rank for group in groups[1:] for one in group]
        alone = len(groups[0]) > 1
        who = (
            f"of {endings.ranks(apart)} differ from those of the other {len(groups[0])} ranks"
            if alone
            else "differ between all ranks"
        )
        wrapped = model.kind == "ddp"
        # Bytes that the collectives of the script sent in all steps, by rank.
        sent: Counter[int] = Counter()
        for call in calls.calls if calls is not None else ():
            sent[call.rank] += call.bytes
        least = min(sent.values(), default=0) // max(1, calls.steps if calls is not None else 1)
        averages = bool(sent) and least >= model.trainable_bytes
        if not averages and exchanged_models.averaged_at_times(model, calls):
            continue
        missed = left_out(models) if sent else None
        past = script.past_wrapper if script is not None and not averages else ()
        if past:
            reason = (
                f"{shown(past[0])} runs the model inside DDP, which averages gradients only after "
                "its own forward"
            )
        elif model.bypassed or (wrapped and steps is not None and steps.synced is False):
            reason = (
                "the script calls the model inside DDP, and not DDP, which reduces nothing then"
            )
        elif wrapped:
            reason = "the script changes them outside DDP"
        elif missed is not None:
            reason = f"the script averages gradients itself, but not those of {missed.shown}"
        elif averages:
            reason = (
                "the script averages gradients itself, but not all of them or not from the start"
            )
        else:
            reason = (
                "no wrapper or collective averages the gradients: correct only if each rank trains "
                "a separate model"
            )
        if (who, reason) in told:
            continue  # another model of the same script, for the same reason
        told.add((who, reason))
        yield Finding(
            severity=Severity.ERROR if wrapped or past or averages or missed else Severity.WARNING,
            confidence=Confidence.CERTAIN if wrapped or past else Confidence.LIKELY,
            because=(
                f"the parameters of {model.name} {who}, by up to {most:.1g} of their size, "
                f"although replicas must be equal to the last bit: {reason}"
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
            fixes=(_CALL if wrapped or past else _WRAP, _BROADCAST),
        )


def left_out_by_hand(
    wrapping: Wrapping, run: TrainingRun, calls: CollectiveCalls | None
) -> Iterator[Finding]:
    """Ranks with parts of a model, as experts, average the gradients of the rest themselves."""
    if not _ended_alike(run):
        return
    for models in wrapping.by_name(lambda one: exchanged_models.is_part(one, calls)):
        missed = left_out(models) if len(models) == len(run.ranks) else None
        if missed is not None and missed.fewer:
            known = missed.others_begin_apart
            yield Finding(
                severity=Severity.WARNING if known else Severity.NOTE,
                confidence=Confidence.LIKELY if known else Confidence.POSSIBLE,
                title="The ranks do not average the gradients of some parameters",
                because=(
                    f"of {models[0].name}, {missed.shown} began equal on all ranks and "
                    f"{'differ' if len(missed.names) > 1 else 'differs'} now, while others stayed "
                    "equal: their gradients are not averaged, which is correct only if each rank "
                    "is to have its own"
                ),
                fixes=(
                    Fix.python(
                        summary="average their gradients as well, before the optimizer's step",
                        paste=(
                            f"# {missed.names[0]}\n"
                            "torch.distributed.all_reduce(parameter.grad)\n"
                            "parameter.grad /= torch.distributed.get_world_size()"
                        ),
                    ),
                ),
            )


def buffers_apart(wrapping: Wrapping, run: TrainingRun) -> Iterator[Finding]:
    """Statistics that a model keeps in buffers, and updates from each rank's own batches."""
    if not _ended_alike(run):
        return
    for models in wrapping.by_name(lambda one: one.kind == "ddp" and not one.broadcast_buffers):
        if len(models) < 2 or len(models) < len(run.ranks):
            continue
        apart = []
        for rows in zip(*(one.buffer_sums for one in models), strict=False):
            alike = len({(row.name, row.elements) for row in rows}) == 1
            scale = max(row.magnitude for row in rows) or 1.0
            spread = max(row.sum for row in rows) - min(row.sum for row in rows)
            if alike and spread > DIFFERENT * scale:
                apart.append(rows[0].name.removeprefix("module."))
        if apart:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE,
                title="Buffers of the model differ between ranks; a checkpoint holds those of one",
                because=(
                    f"buffers of {models[0].name} differ between ranks: "
                    f"{few(apart, MOST_NAMED)}; with broadcast_buffers=False, DDP "
                    "sends none of them: correct only if each rank may have its own"
                ),
                fixes=(
                    Fix.python(
                        summary="update them from the sums over all ranks",
                        paste=(
                            "torch.distributed.all_reduce(counts)  # of this batch, on each rank\n"
                            "torch.distributed.all_reduce(sums)\n"
                            "self.average.lerp_(sums / counts.clamp(min=1), 0.01)"
                        ),
                        caution="what is drawn at random, as new entries, is broadcast from rank 0",
                    ),
                ),
            )


def in_the_source(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """The script averages gradients itself, and no line gives all ranks the same weights."""
    one = script.own_averaging
    # What the training showed is better evidence; a framework may send the weights.
    if one is None or wrapping is not None or script.unseen or script.of(*WRAPPERS):
        return
    if {each.framework for each in script.imports} - {"TorchMetrics"}:
        return
    seeded = f"{shown(one.seed)} seeds each rank differently" if one.seed else "no line sets a seed"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{seeded}, so {shown(one.model)} makes other weights on each rank; no line sends "
            f"those of rank 0, and {shown(one.average)} averages gradients only"
        ),
        fixes=(_BROADCAST, _WRAP),
    )


def without_a_wrapper(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """The ranks join each other, and then nothing in the script exchanges gradients."""
    one = script.trains_alone
    if wrapping is not None or one is None or script.unseen:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"the ranks join each other at {shown(one.joins)}, but no line wraps the model in DDP "
            f"or FSDP, or exchanges gradients: each rank trains its own model at "
            f"{shown(one.at)}"
        ),
        fixes=(_WRAP,),
    )


def not_prepared(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """accelerate wraps the models that it prepares, and the optimizer has those of another one."""
    prepared = prepared_names(script, "prepare_model")
    alone = {one.framework for one in script.imports} - PLAIN == {"accelerate"}
    known = prepared and alone and not script.unseen
    if wrapping is not None or not known or script.of(*WRAPPERS):
        return
    for one in script.calls:
        owner = OWNER.fullmatch(one.argument("params", 0) or "")
        if one.name.startswith("torch.optim.") and owner and owner["model"] not in prepared:
            model = owner["model"]
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} trains {model}, which is not among what accelerator.prepare "
                    f"gets at {script.of('.prepare')[0].at.place}: nothing averages its "
                    "gradients, and each rank trains its own"
                ),
                fixes=(
                    Fix.python(
                        summary="prepare the model together with its optimizer",
                        paste=f"{model}, optimizer = accelerator.prepare({model}, optimizer)",
                    ),
                ),
            )
            return


def never_exchanged(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """All backward passes are in ``no_sync()``, so DDP averages no gradients."""
    line = script.never_synced
    if wrapping is not None or line is None or not is_plain(script):
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"each backward pass of the training is in no_sync(), as {shown(line)}: DDP then "
            "averages no gradients, and each rank trains its own model"
        ),
        fixes=(
            Fix.python(
                summary="leave the last micro-batch before each step outside of no_sync()",
                paste=(
                    "last = (index + 1) % accumulation == 0\n"
                    "with contextlib.nullcontext() if last else model.no_sync():\n"
                    "    loss.backward()"
                ),
            ),
        ),
    )


def exchanged_too_early(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """DDP averages the gradients of another turn than the one before the optimizer's step."""
    if wrapping is not None or not is_plain(script, "Lightning"):
        return
    for one in script.wrong_turns:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"gradients are averaged only in the turns with `{one.synced}` "
                f"({shown(one.at)}), and {shown(one.step)} runs in those with `{one.test}`: what "
                "the turns between add to them is each rank's own"
            ),
            fixes=(
                Fix.python(
                    summary="exchange the gradients in the last turn before the step",
                    paste=(
                        f"last = {one.test}\n"
                        "with contextlib.nullcontext() if last else model.no_sync():\n"
                        "    ...  # forward and backward"
                    ),
                ),
            ),
        )
        return


def changed_by_one_rank(script: Script) -> Iterator[Finding]:
    yield from done_by_one_rank(script)


def outside_the_wrapper(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """The optimizer has parameters of a module that DDP does not know."""
    if wrapping is not None or script.unseen:
        return
    for one in script.outside_wrapper[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.optimizer)} has the parameters of {one.name}, which {shown(one.at)} "
                "makes outside of DDP: each rank changes them by its own samples alone"
            ),
            fixes=(
                Fix.python(
                    summary="wrap it as well, or make it a part of the model that DDP wraps",
                    paste=f"{one.name} = DistributedDataParallel({one.name})"
                    "  # before the optimizer",
                ),
            ),
        )


def past_the_wrapper(script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """The training runs the model inside DDP, which then averages no gradients."""
    if wrapping is not None or not script.past_wrapper or script.unseen:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(script.past_wrapper[0])} runs the model inside DDP: DDP averages the "
            "gradients of a backward pass only after its own forward, so each rank learns from "
            "its own samples alone"
        ),
        fixes=(_CALL,),
    )


def frozen_when_wrapped(
    script: Script, wrapping: Wrapping | None, run: TrainingRun | None
) -> Iterator[Finding]:
    """DDP does not know parameters that needed no gradient when it was made."""
    for one in script.unfrozen[:1] if _is_ahead(wrapping, run) else ():
        yield _unknown_to_ddp(
            f"{shown(one.at)} lets parameters train that were frozen when {shown(one.wrapper)} "
            "was made",
            "or train all parameters from the start, some with a rate of 0",
        )


def added_when_wrapped(
    script: Script, wrapping: Wrapping | None, run: TrainingRun | None
) -> Iterator[Finding]:
    """DDP does not know layers that the model got after it was made."""
    for one in script.added_layers[:1] if _is_ahead(wrapping, run) else ():
        yield _unknown_to_ddp(
            f"{shown(one)} gives the model inside DDP a layer that it had not when DDP was made",
            "or give the model all layers from the start, and use them later",
        )


def _is_ahead(wrapping: Wrapping | None, run: TrainingRun | None) -> bool:
    """Whether nothing was recorded, or a few steps, which end before a later stage."""
    return wrapping is None or (
        run is not None and {one.outcome for one in run.ranks} == {"stopped"}
    )


def _unknown_to_ddp(reason: str, caution: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{reason}: DDP does not average their gradients, so each rank learns from its own "
        "samples alone",
        fixes=(
            Fix.python(
                summary="wrap the model again, on all ranks, after it has changed",
                paste="model = DistributedDataParallel(model.module, device_ids=[local_rank])",
                caution=caution,
            ),
        ),
    )


def _ended_alike(run: TrainingRun) -> bool:
    """Whether all ranks took as many steps: else their parameters differ for that reason."""
    return len({one.steps for one in run.ranks}) == 1 and not any(one.fell for one in run.ranks)


def _comparable(models: Sequence[Wrapper]) -> bool:
    """Whether these are replicas of one model that every step keeps equal."""
    kinds = {(one.kind, one.name, one.parameters, len(one.checksum)) for one in models}
    # Local SGD lets the replicas diverge, and averages them from time to time.
    local = any("local" in one.comm_hook.lower() for one in models)
    known = models[0].kind in ("ddp", "none") and bool(models[0].checksum)
    return len(kinds) == 1 and known and not local


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
    return max(1.0 if isnan(a - b) else abs(a - b) / (scale or 1.0) for a, b, scale in rows)


_CALL = Fix.python(
    summary="call the wrapped model, and do not change it after wrapping",
    paste=(
        "model = DistributedDataParallel(model)   # after it is complete and loaded\n"
        "loss = criterion(model(x), y)            # not model.module(x)"
    ),
)
# What may send the weights of one rank to all.
_WRAP = Fix.python(
    summary="wrap the model in DDP: it broadcasts rank 0's parameters, averages gradients",
    paste="model = DistributedDataParallel(model)",
)
_BROADCAST = Fix.python(
    summary="or broadcast rank 0's parameters to all ranks",
    paste=(
        "with torch.no_grad():\n"
        "    for tensor in model.state_dict().values():\n"
        "        torch.distributed.broadcast(tensor, src=0)"
    ),
    caution="makes them equal once, but does not remove the cause",
)
