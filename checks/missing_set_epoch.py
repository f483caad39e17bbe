"""The DistributedSampler repeats the same order in every epoch, because set_epoch is missing.

The order depends on the seed of the sampler and the epoch number, and only ``set_epoch`` changes
that number. Without it every epoch repeats the same batches in the same order. Each rank keeps the
same shard of the data forever, so shuffling has no effect. Speed does not change, and the loss
curve looks normal.

Symptoms: the loss shows the same small waves in each epoch.

To fix it, call ``sampler.set_epoch(epoch)`` before each epoch.
"""

# Above 150 lines: a recorded run, and three mistakes of the source.

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.script_source import LOADER, SAMPLER, evaluates, is_plain, shown
from ddoctor.evidence.loading import DataSeen, Loader, Loading
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceUnreached
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# A script may take one batch to inspect the loader; an epoch takes more.
AN_EPOCH = 2
# Fewer items than this may repeat their order by chance (8! orders are 40,320).
ITEMS = 8


def same_order_again(
    loading: Loading, seen: DataSeen | None, run: TrainingRun | None
) -> Iterator[Finding]:
    found: dict[str, int] = {}
    for one in loading.loaders:
        known = _orders(one, seen)
        again = len(set(known)) == 1 if len(known) > 1 else one.seeded_by_epoch is False
        if one.shuffle and one.taken and again:
            found.setdefault(one.name, len(known))
    prepared = run is not None and run.framework == "accelerate"
    for name, orders in found.items():
        shown = (
            f"{orders} epochs began with the same batches in the same order"
            if orders > 1
            else "set_epoch was not called with a new number before the second epoch"
        )
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN if orders > 1 else Confidence.LIKELY,
            because=f"the DistributedSampler of the DataLoader at {name} shuffles, but {shown}",
            evidence=(
                Observation(
                    name="different orders",
                    value=1,
                    expected=max(2, orders),
                    source="recorded epochs, torch's DistributedSampler",
                ),
            ),
            fixes=(
                Fix.python(
                    summary="call set_epoch before each epoch",
                    paste=(
                        "for epoch in range(epochs):\n"
                        f"    loader{'' if prepared else '.sampler'}.set_epoch(epoch)"
                        f"  # the loader of {name}, before the loop over it\n"
                        "    for batch in loader:\n"
                        "        ..."
                    ),
                    caution="after a resume, continue with the saved epoch number, not with 0",
                ),
            ),
        )


def in_the_source(
    script: Script, loading: Loading | None, seen: DataSeen | None
) -> Iterator[Finding]:
    if loading is not None and any(_is_settled(one, seen) for one in loading.loaders):
        return  # what was measured during the training is better evidence
    epochs = [loop.at for loop in script.loops if loop.kind == "epoch"]
    by_ray = script.of("ray.train.torch.prepare_data_loader")
    if not epochs or not (by_ray or is_plain(script, "DeepSpeed")):
        return
    for still in script.still_epochs:
        yield _of_a_number(still)
        return
    evaluate = {one.at for one in script.of(LOADER) if evaluates(one)}
    for own in script.unreached_samplers:
        if own.loader not in evaluate:
            yield _of_its_own(own, epochs[0])
            return
    calls = [one for one in script.calls if one.name.endswith("set_epoch")]
    by_its_name = not calls and script.names_set_epoch is not None
    if by_its_name or not all(_is_before(one, epochs) for one in calls):
        return
    for one in by_ray:
        # Ray puts a DistributedSampler into a loader that shuffles.
        if "shuffle=True" in one.at.text and not calls and not evaluates(one):
            yield _of_ray(one, epochs[0])
            return
    for sampler in script.of(SAMPLER):
        shuffles = sampler.argument("shuffle", 3)
        if shuffles != "False" and "**" not in sampler.keywords and not evaluates(sampler):
            name = sampler.assigned or "loader.sampler"
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY if shuffles in (None, "True") else Confidence.POSSIBLE,
                because=(
                    f"{shown(sampler.at)} shuffles, and "
                    + (
                        f"only {calls[0].at.place}, before the loop over epochs at "
                        f"{shown(epochs[0])}, calls set_epoch"
                        if calls
                        else "no line of the script calls set_epoch in the loop over epochs at "
                        f"{shown(epochs[0])}"
                    )
                ),
                fixes=(
                    Fix.python(
                        summary="call set_epoch before each epoch",
                        paste=f"{epochs[0].text}\n    {name}.set_epoch(epoch)",
                        caution="after a resume, continue with the saved epoch number, not with 0",
                    ),
                ),
            )
            return


def without_effect(script: Script) -> Iterator[Finding]:
    """The script calls set_epoch of a sampler that does not shuffle."""
    for sampler in script.of(SAMPLER):
        still = sampler.argument("shuffle", 3) == "False" and not evaluates(sampler)
        calls = (one for one in script.calls if one.name.endswith("set_epoch"))
        moved = next((one for one in calls if one.on == sampler.assigned != ""), None)
        if still and moved is not None:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"{shown(sampler.at)} does not shuffle, so {shown(moved.at)} changes "
                "nothing: every epoch has the order of the dataset",
                fixes=(
                    Fix.python(
                        summary="let the sampler of the training shuffle",
                        paste="sampler = DistributedSampler(dataset, shuffle=True)",
                        caution="data whose order matters, as in a curriculum, needs no change",
                    ),
                ),
            )
            return


def _is_settled(loader: Loader, seen: DataSeen | None) -> bool:
    """Whether the run had a second epoch, which shows what the sampler does."""
    again = loader.seeded_by_epoch is not None or len(_orders(loader, seen)) > 1
    return bool(loader.shuffle) and again


def _of_a_number(call: SourceLine) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{shown(call)} gives the sampler a number that no line of the loop advances: "
        "every epoch has the same order",
        fixes=(
            Fix.python(
                summary="give it the number of the loop",
                paste="for epoch in range(first, epochs):\n    sampler.set_epoch(epoch)",
            ),
        ),
    )


def _of_its_own(one: SourceUnreached, epochs: SourceLine) -> Finding:
    other = f" in the loop over epochs at {shown(epochs)}"
    if one.calls is not None:
        other = f": {shown(one.calls)} calls it on another object"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{shown(one.loader)} takes its order from {shown(one.at)}, and no line calls the "
        f"set_epoch of that{other}",
        fixes=(
            Fix.python(
                summary="call it on the sampler itself before each epoch",
                paste=f"{epochs.text}\n    own_sampler.set_epoch(epoch)"
                "  # of a batch_sampler: loader.batch_sampler.set_epoch(epoch)",
            ),
        ),
    )


def _of_ray(prepares: SourceCall, epochs: SourceLine) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{shown(prepares.at)} gives the loader a DistributedSampler, and no line of the "
        f"script calls its set_epoch in the loop over epochs at {shown(epochs)}",
        fixes=(
            Fix.python(
                summary="call set_epoch before each epoch",
                paste=f"{epochs.text}\n    if ray.train.get_context().get_world_size() > 1:\n"
                "        loader.sampler.set_epoch(epoch)",
            ),
        ),
    )


def _is_before(call: SourceCall, epochs: Sequence[SourceLine]) -> bool:
    """Whether it is called once before the loop over epochs, in the same function."""
    return not call.within and any(
        (one.file, one.function) == (call.at.file, call.at.function) and call.at.line < one.line
        for one in epochs
    )


def _orders(loader: Loader, seen: DataSeen | None) -> Sequence[tuple[str, ...]]:
    """The first batches of each epoch of a loader; empty if too few can be compared."""
    began = [
        one.batches
        for one in (seen.epochs if seen is not None else ())
        if (one.rank, one.name, one.by) == (loader.rank, loader.name, "indices")
        and (one.taken is None or one.taken >= AN_EPOCH)
    ]
    length = min(map(len, began), default=0)
    if length * (loader.batch_size or 1) < ITEMS:
        return ()
    return [batches[:length] for batches in began]
