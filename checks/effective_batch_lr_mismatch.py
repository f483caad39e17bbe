"""The learning rate and the number of steps were chosen for another effective batch.

Each optimizer step uses micro-batch × accumulation × ranks samples. With more ranks, frameworks
change neither the rate nor the steps. Then a rate that was tuned on one GPU is too small, and the
same number of steps reads the data several times as often.

Symptoms: a slower start than on one GPU, or another final accuracy.

To fix it, keep the effective batch (more accumulation, or smaller micro-batches), or scale the rate
with it: linearly for SGD, by the square root for Adam.
"""

# Above 150 lines: a config, a text of the project and the source say for which batch a rate is.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import DECAY, EVALUATE, SAVE, WARM_UP, LaunchPlan, scaled
from ddoctor.analysis.script_plan import micro_batch, own_rate
from ddoctor.analysis.script_source import WRAPPERS, is_plain, shown
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

WHOLE = re.compile(r"global|total|effective")
COUNTED = (*WARM_UP[:1], *DECAY, *SAVE, *EVALUATE)


def a_loss_of_all_ranks(script: Script) -> Iterator[Finding]:
    """The loss is averaged over the ranks before its backward pass, and the gradients again."""
    for one in script.reduced_losses[:1] if is_plain(script) else ():
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            title="The gradients are too small by the number of ranks",
            because=(
                f"{shown(one.at)} sums the loss over the ranks, which autograd does not know of, "
                f"and {shown(one.divides)} divides it before its backward pass; DDP averages the "
                "gradients as well"
            ),
            fixes=(
                Fix.python(
                    summary="reduce a copy of the loss, for the log alone",
                    paste="loss.backward()  # of this rank: DDP averages the gradients\n"
                    "mean = loss.detach().clone()\n"
                    "torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.AVG)",
                ),
            ),
        )


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    """A note with what changes; no text shows for which batch a rate was chosen."""
    micro, ranks, steps = plan.micro_batch, plan.ranks, plan.steps
    if micro is None or ranks is None or ranks < 2 or plan.batch is None or plan.split is not None:
        return
    # A policy of LeRobot brings the rate of its paper.
    by_policy = "lerobot" in plan.launch.script
    rates = scaled(plan.rate, float(ranks))
    if steps is None or steps.number is None or (rates is None and not by_policy):
        return
    rate = f"the rate {plan.rate.value}" if plan.rate is not None else "the rate of the policy"
    linear, root = rates or (ranks, ranks**0.5)
    times = "" if rates else "× "
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=f"an optimizer step uses {plan.batch:,} samples, {ranks} times as many as on one "
        f"GPU, and {steps.number:,} steps ({steps.at}) read {ranks} times as many; if {rate} and "
        "the steps are of one GPU, one of these choices fits",
        evidence=(
            Observation(name="samples in a step", value=plan.batch, source=micro.at),
            *_observed(plan.rate),
            Observation(name="optimizer steps", value=steps.number, source=steps.at),
        ),
        fixes=(
            Fix(
                summary="scale the rate, and divide what is counted in steps",
                paste="\n".join(
                    (
                        f"learning rate  {times}{root:.3g} (Adam, by the square root)",
                        f"               {times}{linear:.3g} (SGD, linear)",
                        f"steps          {max(1, steps.number // ranks):,}",
                        *_counted(plan, ranks),
                    )
                ),
                language="text",
            ),
            *_same_batch(micro.number or 1, ranks),
        ),
    )


def _observed(rate: Setting | None) -> Iterator[Observation]:
    if rate is not None:
        yield Observation(name="learning rate", value=rate.value, source=rate.at)


def for_other_ranks(plan: LaunchPlan) -> Iterator[Finding]:
    """A config says for how many GPUs, or which effective batch, its rate is."""
    rate, ranks, launch = plan.rate, plan.ranks, plan.launch
    made, base = launch.get("made-for.ranks"), launch.get("made-for.batch")
    if rate is None or not rate.file or ranks is None or launch.on("arg.auto_scale_lr"):
        return
    if base is not None and base.number and plan.batch is not None:
        of, factor = f"{base.value} samples ({base.at})", plan.batch / base.number
    elif made is not None and made.number:
        of, factor = f"{made.value} GPUs ({made.at})", ranks / made.number
    else:
        return
    yield from _finding(plan, rate, factor, of)


def for_another_batch(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A text of the project says for which batch the rate was chosen."""
    ranks, launch = plan.ranks, plan.launch
    rate, batch = plan.rate or own_rate(script), _samples(plan, script)
    if rate is None or batch is None or script.scales_by_ranks is not None:
        return
    if any("split_batches" in one.at.text for one in script.calls):
        return  # accelerate then divides the batch between the ranks
    pairs = zip(launch.all("made-for.samples"), launch.all("made-for.rate"), strict=False)
    meant = [base for base, of in pairs if _number(of.value) == _number(rate.value)]
    if ranks is None or len({one.value for one in meant}) != 1 or not meant[0].number:
        return
    of = f"{meant[0].value} samples in a step ({meant[0].at})"
    yield from _finding(plan, rate, batch / meant[0].number, of)


def _samples(plan: LaunchPlan, script: Script) -> int | None:
    """Samples of all ranks for each optimizer step; None: unknown, or the script has a whole."""
    named = (one.name[4:].lower() for one in plan.launch.settings if one.name.startswith("arg."))
    if any("batch" in name and WHOLE.search(name) for name in named):
        return None
    if plan.batch is not None:
        return plan.batch
    micro = plan.get("arg.batch", "arg.micro")
    size = micro.number if micro is not None else None
    if micro is None and script.accumulates is None and (own := micro_batch(script)) is not None:
        size = own[0]
    if not size or plan.ranks is None or plan.degrees:
        return None
    return size * plan.ranks * plan.accumulation


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _finding(plan: LaunchPlan, rate: Setting, factor: float, of: str) -> Iterator[Finding]:
    rates = scaled(rate, factor)
    if factor == 1 or rates is None:
        return
    linear, root = rates
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"the rate {rate.value} ({rate.at}) is for {of}; this starts {plan.ranks} ranks, "
        f"so the effective batch is {factor:.3g} times as large",
        evidence=(
            Observation(name="ranks", value=plan.ranks or 1, source="the launch"),
            Observation(name="learning rate", value=rate.value, source=rate.at),
        ),
        fixes=(
            Fix(
                summary="scale the rate with the effective batch",
                paste=f"learning rate  {linear:.3g} (SGD, linear)\n"
                f"               {root:.3g} (Adam, by the square root)",
                language="text",
            ),
        ),
    )


def without_the_ranks(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The script scales by its batch size, in which the number of ranks is missing."""
    ranks = plan.ranks
    if ranks is None or ranks < 2:
        return
    for one in script.own_rates:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{shown(one)} counts the samples of one rank, and {ranks} ranks train: the "
            f"effective batch is {ranks} times as large as the line assumes",
            evidence=(Observation(name="ranks", value=ranks, source="the launch"),),
            fixes=(
                Fix.python(
                    summary="count the samples of all ranks",
                    paste="world = torch.distributed.get_world_size()\n"
                    f"# and the batch size times world in: {one.text}",
                ),
            ),
        )
        return


def scaled_twice(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Two places of the script multiply the rate by the number of ranks."""
    for one in script.scaled_twice:
        ranks = plan.ranks or 0
        factor = f"{ranks} times too high" if ranks > 1 else "too high by the number of ranks"
        if ranks != 1:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"the rate of {shown(one.at)} is multiplied by the number of ranks twice, "
                f"at {shown(one.first)} and at {shown(one.second)}: it is {factor}",
                fixes=(
                    Fix.python(
                        summary="multiply it in one place",
                        paste=f"# without the number of ranks: {one.second.text}",
                        caution="Adam needs the square root of it, at most",
                    ),
                ),
            )
            return


def summed(script: Script) -> Iterator[Finding]:
    """The script adds the gradients of all ranks up itself."""
    line = script.summed_gradients
    if line is None or script.unseen or script.of(*WRAPPERS):
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        title="The gradients of the ranks are added up, and not averaged",
        because=(
            f"{shown(line)} adds them up, and no line divides by the number of ranks: each step is "
            "larger than on one GPU by the number of ranks"
        ),
        fixes=(
            Fix.python(
                summary="average them",
                paste="dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()",
                caution="or wrap the model in DDP, which averages them during the backward pass",
            ),
        ),
    )


def _counted(plan: LaunchPlan, ranks: int) -> Iterator[str]:
    for name in COUNTED:
        found = plan.get(name)
        if found is not None and found.number:
            yield f"{name[4:].ljust(14)} {max(1, found.number // ranks):,}"


def _same_batch(micro: int, ranks: int) -> Iterator[Fix]:
    if micro % ranks == 0:
        yield Fix(
            summary="or keep the effective batch of one GPU",
            paste=f"micro-batch {micro // ranks} on each of {ranks} ranks",
            language="text",
        )
