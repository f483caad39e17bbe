"""Some parameters get no gradient in some steps, so DDP fails or hangs.

DDP reduces a bucket once all of its parameters have their gradients. A skipped branch, or an output
that is not part of the loss, leaves a gradient missing. Then the reduction never finishes, and DDP
raises in the next forward pass. If the missing parameters differ between ranks, the ranks that have
their gradients wait for a reduction that the others never start.

Symptoms: "Expected to have finished reduction in the prior iteration before starting a new one", in
the second step or after hours. Or ranks hang in backward. A single process runs without error.

To fix it, use every parameter in the loss, freeze unused parameters, or set
``find_unused_parameters=True``.
"""

# Above 150 lines: the source, and three moments of a run (before a crash, after it, never).

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.analysis import endings
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import names_of
from ddoctor.analysis.script_source import is_plain, shown, with_keywords
from ddoctor.analysis.switched_layers import SwitchedLayers
from ddoctor.analysis.unused_gradients import sent_in_vain, share_of_transfers
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")

# torch/csrc/distributed/c10d/reducer.cpp, ensure_prior_reduction_finished; and what Lightning makes
# of it (lightning/pytorch/strategies/ddp.py).
CRASH = (
    "Expected to have finished reduction in the prior iteration"
    "|LightningModule has parameters that were not used in producing the loss"
)
NAMED = re.compile(r"Parameters which did not receive grad for rank \d+: (.+)")
NUMBERED = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")

# Of transformers 5, the encoders whose class takes ``add_pooling_layer``.
POOLED = re.compile(
    r"(?:^|/)(?:bert|roberta|xlm-roberta|camembert|albert|mpnet|longformer|ernie|vit)-", re.I
)
OF_POOLED = re.compile(
    r"transformers\.(?:Bert|Roberta|XLMRoberta|Camembert|Albert|MPNet|Longformer|Ernie|ViT)Model"
    r"\.from_pretrained"
)
DDP = "torch.nn.parallel.DistributedDataParallel"
# As of communication-bound-step: less than 85 % of the speed on one GPU is unusual.
NOTABLE = 0.15
FEW = 4
"""Beyond this many names, only the count is shown."""

GOES_ON = frozenset({"stopped", "finished"})
"""How ranks end whose training would have gone on."""

Names = tuple[str, ...]


def crashed(
    run: TrainingRun, wrapping: Wrapping | None, words: FrameworkWords
) -> Iterator[Finding]:
    raised = run.raised(CRASH)
    if not raised:
        return
    left_out = {one.rank: _left_out(one, wrapping) for one in raised}
    silent = [one.rank for one in run.ranks if one not in raised]
    its = "its" if len(silent) == 1 else "their"
    waiting = f"; {endings.ranks(silent)} had all of {its} gradients" if silent else ""
    yield _finding(
        left_out,
        f"DDP stopped {endings.when(run, raised[0])}, because parameters got no gradient in "
        f"the previous step: {_by_rank(left_out)}{waiting}",
        Confidence.CERTAIN,
        words,
    )


def seen_coming(
    wrapping: Wrapping, run: TrainingRun | None, steps: Steps | None, words: FrameworkWords
) -> Iterator[Finding]:
    if run is not None and run.raised(CRASH):
        return
    # DDP then expects a gradient for every parameter in every step.
    strict = [
        one
        for one in wrapping.wrappers
        if one.kind == "ddp" and not one.find_unused_parameters and not one.static_graph
    ]
    left_out = {one.rank: names for one in strict if (names := one.unused or one.sometimes_unused)}
    # It checks nothing if its forward is bypassed.
    if not left_out or (steps is not None and steps.synced is False):
        return
    # It would have stopped in the step after the first such one.
    ended = {one.outcome for one in run.ranks} if run is not None else set()
    if ended <= GOES_ON and ended and min(one.inspected_steps for one in strict) > 1:
        return
    end = "DDP stops in the forward pass after such a step"
    if len(set(left_out.values())) > 1 or len(left_out) < len(strict):
        end = "the other ranks then wait for gradients that never arrive, and DDP stops"
    yield _finding(
        left_out,
        f"parameters got no gradient ({_by_rank(left_out)}), and find_unused_parameters is off: "
        f"{end}",
        Confidence.LIKELY,
        words,
    )


def by_an_option(
    script: Script, launch: Launch | None, layers: SwitchedLayers, wrapping: Wrapping | None
) -> Iterator[Finding]:
    """An option leaves a layer of the user's model out, and the model makes it all the same."""
    if not _reduces(script, launch, wrapping):
        return
    for one in layers.left_out:
        name = one.layer.at.text.partition("=")[0].strip().removeprefix("self.")
        told = f" ({one.setting.at})" if one.setting is not None and one.setting.at else ""
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.layer.at)} makes parameters, and "
                + (f"{one.option}={one.value}{told}" if one.option else "a constant of the source")
                + " leaves them out of forward, while find_unused_parameters is off: DDP stops in "
                "the second step"
            ),
            fixes=(
                Fix.python(
                    summary="make the layer only where the option needs it, or freeze it",
                    paste=f"model.{name}.requires_grad_(False)  # before DDP wraps the model",
                ),
            ),
        )
        return


def in_the_source(
    script: Script, launch: Launch | None, wrapping: Wrapping | None
) -> Iterator[Finding]:
    """A layer of the user's model takes no part in the loss."""
    if not _reduces(script, launch, wrapping):
        return
    for one in script.unused_layers:
        name = one.text.partition("=")[0].strip().removeprefix("self.")
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one)} makes parameters that take no part in the loss, and "
                "find_unused_parameters is off: DDP stops in the second step"
            ),
            fixes=(
                Fix.python(
                    summary="remove the layer, or freeze it before DDP wraps the model",
                    paste=f"model.{name}.requires_grad_(False)",
                ),
            ),
        )
        return


def of_a_pooler(plan: LaunchPlan, script: Script, wrapping: Wrapping | None) -> Iterator[Finding]:
    """An encoder brings a pooler, and the loss takes its last hidden states alone.

    Source: transformers/models/bert/modeling_bert.py, ``BertModel``, and those that resemble it.
    """
    takes = script.takes_hidden_states
    less = script.names_pooler or script.trains_less
    searches = any("find_unused_parameters" in one.keywords for one in script.calls)
    if takes is None or less or searches or not _reduces(script, plan.launch, wrapping):
        return
    for one in script.calls:
        by_class = OF_POOLED.fullmatch(one.name)
        by_name = one.name == "transformers.AutoModel.from_pretrained" and any(
            POOLED.search(name.strip("'\"")) for name in names_of(one, plan)
        )
        if (by_class or by_name) and _is_wrapped(one, script):
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} brings a pooler, and the script takes only the last "
                f"hidden states ({takes.place}): its parameters get no gradient, "
                "find_unused_parameters is off, and DDP stops in the second step",
                fixes=(
                    Fix.python(
                        summary="make the model without it",
                        paste=with_keywords(one, add_pooling_layer="False"),
                    ),
                ),
            )
            return


def _is_wrapped(made: SourceCall, script: Script) -> bool:
    """Whether DDP gets that model, or one whose class makes it; a teacher needs no gradients."""
    owner = made.at.function.rpartition(".")[0]
    for one in script.of(DDP):
        given = f"{one.argument('module', 0)} {one.held('module', 0)}"
        name = re.escape(owner) + r"\(" if owner else re.escape(made.assigned)
        if made.name in one.origin("module", 0) or (name and re.search(rf"\b{name}", given)):
            return True
    return False


def _reduces(script: Script, launch: Launch | None, wrapping: Wrapping | None) -> bool:
    """Whether DDP needs each gradient, as far as the source shows it."""
    # What DDP itself saw is better evidence.
    if wrapping is not None or not is_plain(script, "accelerate"):
        return False
    by_accelerate = any(one.framework == "accelerate" for one in script.imports)
    return bool(script.of(DDP)) or (by_accelerate and not _shards(script, launch))


def _shards(script: Script, launch: Launch | None) -> bool:
    """Whether accelerate uses FSDP or DeepSpeed, which need no gradient of each parameter."""
    strategy = launch.get("strategy") if launch is not None else None
    if strategy is not None and strategy.value != "ddp":
        return True
    switched = ("accelerate.use_fsdp", "accelerate.use_deepspeed")
    if launch is not None and any(map(launch.on, switched)):
        return True
    return any(one.name.endswith("Plugin") for one in script.calls)


def left_out_for_good(wrapping: Wrapping, steps: Steps | None) -> Iterator[Finding]:
    watched = [one for one in wrapping.wrappers if one.find_unused_parameters]
    never = next((one for one in watched if one.unused and one.inspected_steps), None)
    if never is not None and all(one.unused == never.unused for one in watched):
        share = share_of_transfers(steps) if sent_in_vain(wrapping) is not None else 0.0
        sends = (
            f"sends zeros for them, {never.unused_bytes / MIB:.3g} of "
            f"{never.trainable_bytes / MIB:.3g} MiB: all transfers take {share:.0%} of the step"
            if share
            else "searches the graph in every step"
        )
        yield Finding(
            severity=Severity.WARNING if share >= NOTABLE else Severity.NOTE,
            confidence=Confidence.LIKELY,
            title="Some parameters get no gradient, and DDP searches for them in each step",
            because=(
                f"{_names(never.unused)} got no gradient on any rank in {never.inspected_steps} "
                f"inspected steps; find_unused_parameters=True tolerates them, but DDP then {sends}"
            ),
            evidence=(
                Observation(
                    name="parameters without a gradient", value=len(never.unused), expected=0
                ),
            ),
            cost=Cost(value=round(share, 3), unit="share of step") if share else None,
            fixes=(_frozen(never.unused),),
        )


def _left_out(one: RankEnding, wrapping: Wrapping | None) -> Names:
    """The parameters by name, from the recorder or from torch; else their numbers."""
    for wrapper in wrapping.wrappers if wrapping is not None else ():
        names = wrapper.unused or wrapper.sometimes_unused
        if wrapper.rank == one.rank and names:
            return names
    if found := NAMED.search(one.message):
        return tuple(sorted(found[1].split(", ")))
    found = NUMBERED.search(one.message)
    return tuple(f"number {index}" for index in found[1].split()) if found else ()


def _finding(
    left_out: Mapping[int, Names], because: str, confidence: Confidence, words: FrameworkWords
) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=because,
        evidence=tuple(
            Observation(
                name=f"parameters without a gradient on {endings.ranks([rank])}",
                value=len(names),
                expected=0,
                source="; ".join((*names[:FEW], *(["…"] if len(names) > FEW else []))),
            )
            for rank, names in sorted(left_out.items())[:FEW]
        ),
        where=Where(ranks=tuple(sorted(left_out))),
        fixes=tuple(_fixes(left_out, words)),
    )


def _fixes(left_out: Mapping[int, Names], words: FrameworkWords) -> Iterator[Fix]:
    names = tuple(dict.fromkeys(name for names in left_out.values() for name in names))
    if not names or names[0].startswith("number "):
        numbers = ", ".join(name.removeprefix("number ") for name in names)
        yield Fix.python(
            summary="print the names of these parameters",
            paste=(
                "names = [n for n, p in model.named_parameters() if p.requires_grad]\n"
                f"print([names[index] for index in ({numbers or '…'},)])"
            ),
        )
    else:
        yield Fix.python(
            summary="use every parameter in the loss, in every step and on every rank",
            paste=(
                f"idle = [p for name, p in model.named_parameters() if {_matches(names)}]\n"
                "loss = loss + 0.0 * sum(p.sum() for p in idle)   # before loss.backward()"
            ),
            caution="their gradients are then zero, not None; weight decay still changes them",
        )
        if len(set(left_out.values())) == 1:
            yield _frozen(names)
    yield Fix.python(
        summary="or set find_unused_parameters=True",
        paste=words.of_ddp("find_unused_parameters", True),
        caution="DDP then searches the autograd graph in every step",
        settings=("ddp.find_unused_parameters=true",),
    )


def _frozen(names: Names) -> Fix:
    return Fix.python(
        summary="remove these parameters from the model, or freeze them, if they are never needed",
        paste=(
            "for name, parameter in model.named_parameters():   # before DDP wraps the model\n"
            f"    if {_matches(names)}:\n"
            "        parameter.requires_grad = False"
        ),
    )


def _matches(names: Names) -> str:
    """A condition on ``name`` that holds for these."""
    if len(names) <= FEW:
        return f"name in {names!r}"
    modules = tuple(dict.fromkeys(f"{name.rpartition('.')[0]}." for name in names))
    return f"name.startswith({modules!r})"


def _by_rank(left_out: Mapping[int, Names]) -> str:
    if len(set(left_out.values())) == 1:
        return f"{_names(next(iter(left_out.values())))} on {endings.ranks(left_out)}"
    rows = [
        f"{_names(names)} on {endings.ranks([rank])}" for rank, names in sorted(left_out.items())
    ]
    more = f", and on {len(rows) - FEW} more ranks" if len(rows) > FEW else ""
    return ", ".join(rows[:FEW]) + more


def _names(names: Sequence[str]) -> str:
    if not names:
        return "unnamed parameters"
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + more
