"""Lines by which a rank decides alone, by its own data, whether it reaches a collective.

Each function tells one line at most of its kind: the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.branch_fixes import leave_together, let_all_decide
from ddoctor.analysis.script_source import LOADER, evaluates, is_plain, shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

# What a rank knows of its own batch alone.
OF_ITS_BATCH = re.compile(r"is_?finite|is_?nan|is_?inf\b", re.IGNORECASE)
DATA_PARALLEL = ("accelerate", "DeepSpeed")


def skipped_steps(script: Script) -> Iterator[Finding]:
    """A rank leaves the loop over batches, or a step before its backward pass, by its own batch."""
    # What is told of a loss that is not finite.
    known = {one.unless for one in script.of(".backward") if OF_ITS_BATCH.search(one.unless)}
    skips = [one for one in script.own_skips if one.test not in known]
    if not skips or not is_plain(script, *DATA_PARALLEL):
        return
    first = skips[0]
    yield _told(
        f"a rank leaves {'the loop over batches' if first.ends else 'a step'} at "
        f"{shown(first.at)} if `{first.test}`, which it decides by its own batch: the others "
        "wait for its gradients",
        let_all_decide(first.test, then=first.at.text.rpartition(":")[2].strip()),
    )


def other_decisions(script: Script) -> Iterator[Finding]:
    """Of a loss that is not finite, errors that are caught, keys, branches, and the end."""
    yield from _by_own_keys(script)
    yield from _from_itself(script)
    if is_plain(script, *DATA_PARALLEL, "Ray"):
        yield from _stops_alone(script)
        yield from _diverges_alone(script)
    if is_plain(script, *DATA_PARALLEL):
        yield from _bad_loss(script)
        yield from _goes_on_alone(script)
        yield from _by_own_batch(script)
        yield from _by_own_clock(script)
        yield from _by_own_chance(script)


def _bad_loss(script: Script) -> Iterator[Finding]:
    """A rank whose own loss is not finite leaves the step before its backward pass."""
    agreed = [
        one for one in script.calls if one.collective is not None and "training" in one.within
    ]
    for one in script.of(".backward"):
        skips = OF_ITS_BATCH.search(one.unless)
        before = [
            other
            for other in agreed
            if other.at.file == one.at.file and other.at.line < one.at.line
        ]
        if skips and "training" in one.within and not before:
            yield _told(
                f"a rank leaves the step before {shown(one.at)} if `{one.unless}`, which it "
                "decides by its own batch: the others wait for its gradients",
                let_all_decide(one.unless, then="continue"),
            )
            return


def _goes_on_alone(script: Script) -> Iterator[Finding]:
    """A rank that fails at its own batch leaves out a backward pass, and continues."""
    for line in script.own_catches[:1]:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=(
                f"{shown(line)} lets a rank continue after an error in its step, of its batch or "
                "for lack of memory: if only one rank has it, the others wait for its gradients"
            ),
            fixes=(
                Fix.python(
                    summary="let the error end the run, and remove its cause, or skip on all ranks",
                    paste=(
                        "failed = torch.zeros(1, device=device)  # 1.0 in the handler\n"
                        "torch.distributed.all_reduce(failed)  # before the backward pass\n"
                        "if failed.item():\n"
                        "    continue"
                    ),
                    caution="only errors of the forward pass can be skipped so: the backward pass "
                    "has collectives itself",
                ),
            ),
        )


def _by_own_keys(script: Script) -> Iterator[Finding]:
    """A rank calls a collective once for each key that its own data has brought."""
    for one in script.over_own_keys[:1]:
        yield _told(
            f"{shown(one.at)} runs once for each key of a table, and {shown(one.key)} adds "
            "keys by the data of this rank: ranks with other keys call it more or less often",
            Fix.python(
                summary="agree on the keys first",
                paste=(
                    "every = [None] * torch.distributed.get_world_size()\n"
                    "torch.distributed.all_gather_object(every, sorted(table))\n"
                    "for key in sorted({one for keys in every for one in keys}):\n"
                    "    ..."
                ),
                caution="a rank without a key passes a value that changes nothing, such as 0",
            ),
        )


ROOTS = {"broadcast": "src", "broadcast_object_list": "src", "scatter": "src", "reduce": "dst"}
OWN_RANK = ({"torch.distributed.get_rank"}, {"os.environ[RANK]"})


def _from_itself(script: Script) -> Iterator[Finding]:
    """Each rank names itself as the root, which sends to all or gets from all."""
    for name, argument in ROOTS.items():
        for one in script.of(f"torch.distributed.{name}"):
            place = 2 if name == "scatter" else 1
            by_groups = one.argument("group") is not None
            if {*one.origin(argument, place)} in OWN_RANK and one.on_all_ranks and not by_groups:
                given = one.argument(argument, place)
                yield _told(
                    f"{shown(one.at)} names {given} for {argument}, which is another one on each "
                    "rank: all ranks must name the same, or each waits for the others",
                    Fix.python(summary="name one rank for all", paste=f"{argument}=0"),
                )
                return


def _by_own_batch(script: Script) -> Iterator[Finding]:
    """A rank calls a collective only where the values in its own batch lead to it."""
    for one in script.own_branches[:1]:
        yield _told(
            f"{shown(one.at)} leads to a collective, and each rank comes to it only if "
            f"`{one.test}`, which it decides by its own batch: when one rank leaves it out, "
            "the others wait for it",
            let_all_decide(one.test),
        )


def _by_own_clock(script: Script) -> Iterator[Finding]:
    """A rank ends the training when its time is up, which others may see a step later."""
    for one in script.own_clocks[:1]:
        yield _told(
            f"a rank leaves the loop at {shown(one.at)} if `{one.test}`, by its own clock: one "
            "rank may do so a step before the others, which then wait for its gradients",
            leave_together(one.test),
        )


def _by_own_chance(script: Script) -> Iterator[Finding]:
    """A rank leaves out a step by random numbers, which are others on each rank."""
    for one in script.own_chances[:1]:
        yield _told(
            f"a rank leaves {'the loop over batches' if one.ends else 'a step'} at "
            f"{shown(one.at)} if `{one.test}`, by random numbers that are others on each rank: "
            "the others wait for its gradients",
            Fix.python(
                summary="draw these numbers with a generator that has one seed on all ranks",
                paste="chance = random.Random(42)  # once\nchance.random()  # in each step",
            ),
        )


def _diverges_alone(script: Script) -> Iterator[Finding]:
    for line in script.own_divergences[:1]:
        yield _told(
            f"a rank ends the updates of its policy at {shown(line)} by the divergence on its own "
            "rollouts, whose seed differs between the ranks: it then makes fewer steps than the "
            "others, which wait for its gradients",
            leave_together(),
        )


def _stops_alone(script: Script) -> Iterator[Finding]:
    """A rank ends the training by its loss on a part of the evaluation."""
    loaders = script.of(LOADER)
    sampled = [one for one in loaders if "sampler" in one.keywords]
    # Ray gives each rank a part of what it prepares.
    parts = max(len(sampled), len(script.of("ray.train.torch.prepare_data_loader")))
    if not (any(map(evaluates, sampled)) or (loaders and parts >= len(loaders))):
        return
    for line in script.own_stops[:1]:
        yield _told(
            f"a rank leaves the training loop at {shown(line)} by what it has measured "
            "on its own part of the data, and no line makes that the same on all ranks: the "
            "others wait for its gradients",
            leave_together(),
        )


def _told(because: str, fix: Fix) -> Finding:
    return Finding(
        severity=Severity.WARNING, confidence=Confidence.LIKELY, because=because, fixes=(fix,)
    )
