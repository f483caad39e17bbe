"""Activation checkpointing conflicts with DDP, FSDP or frozen layers.

Re-entrant checkpointing recomputes a block inside its backward, in a second backward pass. With
``find_unused_parameters=True``, DDP does not see the parameters of that block in the outer graph.
It marks them as unused, and then receives their gradients. Blocks that share parameters fail in the
same way. Some FSDP setups fail with the opposite setting: with ``use_reentrant=False`` the
recomputed tensors have other types or shapes than the original ones.

A re-entrant checkpoint passes gradients on only if an input of its block needs one. With a frozen
embedding none does, so adapters (LoRA) inside the blocks get no gradient. transformers 5 cares for
that.

Symptoms: "Expected to mark a variable ready only once" (DDP), or "Recomputed values for the
following tensors have different metadata" (FSDP). A single process runs without an error. With a
frozen embedding: "None of the inputs have requires_grad=True", on one process as well.

To fix it, set ``use_reentrant=False`` under DDP and for adapters, or switch off
``find_unused_parameters``. Under FSDP, apply checkpointing inside the wrapped module, or set
``use_reentrant=True``.
"""

# Above 150 lines: DDP and FSDP fail with opposite settings; a run, a log and the source each
# show one of them.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.ddp_options import TAKES_OPTIONS, no_search
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import LONG, shown
from ddoctor.analysis.versions import version
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Software
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")

# torch/csrc/distributed/c10d/reducer.cpp, checkAndRaiseMarkedTwiceError
TWICE = "Expected to mark a variable ready only once"
NAMED = re.compile(r"Parameter at index \d+ with name (\S+) has been marked as ready twice")
NUMBERED = re.compile(r"Parameter at index (\d+)(?! with name)\b")
OLD = ("2", "3", "4")
"""Major versions of transformers."""
# torch/utils/checkpoint.py, _CheckpointFrame.check_recomputed_tensors_match
MISMATCH = "Recomputed values for the following tensors have different metadata"


def with_ddp(
    run: TrainingRun, wrapping: Wrapping | None, words: FrameworkWords
) -> Iterator[Finding]:
    # It failed while a block was recomputed.
    raised = [
        one
        for one in run.raised(TWICE)
        if any("utils/checkpoint" in frame.file for frame in one.stack)
    ]
    if not raised:
        return
    first = raised[0]
    models = wrapping.wrappers if wrapping is not None else ()
    searches = any(one.find_unused_parameters for one in models)
    also = ", while DDP searches for unused parameters" if searches else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        because=(
            f"in step {first.steps + 1} a checkpointed block passed the gradient of "
            f"{_parameter(first.message)} to DDP a second time{also}, at "
            f"{endings.place(first.place) or 'backward'}"
        ),
        evidence=(
            Observation(
                name=f"error of {endings.ranks([first.rank])}", value=TWICE, source="DDP's reducer"
            ),
        ),
        fixes=(
            Fix.python(
                summary="set use_reentrant=False",
                paste="\n".join(_without(words, reentrant=False)),
            ),
            no_search(words, "or switch off find_unused_parameters, if every parameter is used")
            if searches
            else _STATIC,
        ),
    )


def with_fsdp(run: TrainingRun, wrapping: Wrapping, words: FrameworkWords) -> Iterator[Finding]:
    sharded = any(one.kind.startswith("fsdp") for one in wrapping.wrappers)
    raised = run.raised(MISMATCH)
    if not raised or not sharded:
        return
    first = raised[0]
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"in step {first.steps + 1} a block under FSDP was recomputed with other types or "
            "shapes than in forward; a run with use_reentrant=True would show whether FSDP is "
            "the cause"
        ),
        evidence=(
            Observation(
                name=f"error of {endings.ranks([first.rank])}",
                value=first.words,
                source="torch.utils.checkpoint",
            ),
        ),
        fixes=(
            Fix.python(
                summary="apply checkpointing inside the FSDP module, or set use_reentrant=True",
                paste="\n".join(_without(words, reentrant=True)),
            ),
        ),
    )


def in_a_log(run: TrainingRun) -> Iterator[Finding]:
    for one in run.raised(TWICE) if run.only_told else ():
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{endings.who(one)} raised '{log_events.quoted(one.words)}', according to "
                f"{run.log}: blocks that are checkpointed in the re-entrant way run their "
                "backward pass twice, or the model uses parameters twice"
            ),
            where=Where.of([one]),
            fixes=(
                Fix.python(
                    summary="checkpoint without re-entrant backward passes",
                    paste="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n"
                    '# Trainer: gradient_checkpointing_kwargs={"use_reentrant": False}',
                ),
            ),
        )
        return


def in_the_source(script: Script) -> Iterator[Finding]:
    models = [
        one
        for one in script.of(*TAKES_OPTIONS)
        if one.argument("find_unused_parameters") == "True"
        and one.argument("static_graph") in (None, "False")
    ]
    blocks = [
        one
        for one in script.of("torch.utils.checkpoint.checkpoint", ".gradient_checkpointing_enable")
        if _is_reentrant(one)
    ]
    both = [
        one
        for one in script.of("transformers.TrainingArguments")
        if one.argument("ddp_find_unused_parameters") == "True"
        and "'use_reentrant': True" in (one.argument("gradient_checkpointing_kwargs") or "")
    ]
    models, blocks = models + both, blocks + both
    adapted = [
        one
        for one in script.calls
        if "peft_config" in one.keywords or one.name == "peft.get_peft_model"
    ]
    if adapted and not models:
        # transformers/trainer.py, _wrap_model: for a model of peft, it searches by default.
        asked = [one for one in script.calls if OF_CONFIG.search(one.name) and _asks_for_both(one)]
        models, blocks = (adapted, asked) if asked else (models, blocks)
    if models and blocks:
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(blocks[0].at)} checkpoints in the re-entrant way, and "
                f"{shown(models[0].at)} searches for unused parameters: DDP then gets the "
                "gradients of the block twice"
            ),
            fixes=(
                Fix.python(
                    summary="set use_reentrant=False",
                    paste=_not_reentrant(blocks[0]),
                ),
            ),
        )


REENTRANT = re.compile(r"""use_reentrant["']?\s*:\s*true""", re.IGNORECASE)


def by_arguments(plan: LaunchPlan) -> Iterator[Finding]:
    """A line, or a file of arguments, asks transformers' Trainer for both."""
    launch = plan.launch
    given = launch.get("arg.gradient_checkpointing_kwargs")
    nested = launch.get("arg.gradient_checkpointing_kwargs.use_reentrant")
    search = launch.get("arg.ddp_find_unused_parameters")
    blocks = nested if nested is not None and nested.on else given
    asked = (nested is not None and nested.on) or (given and REENTRANT.search(given.value))
    alike = plan.strategy == "DDP" and launch.on("arg.gradient_checkpointing")
    if not (plan.by_trainer and alike and asked) or search is None or not search.on:
        return
    if blocks is not None:
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"use_reentrant is on ({blocks.at}), and so is ddp_find_unused_parameters "
                f"({search.at}): DDP then gets the gradients of each block twice"
            ),
            evidence=(
                Observation(
                    name="ddp_find_unused_parameters", value=search.value, source=search.at
                ),
            ),
            fixes=(
                Fix(
                    summary="set use_reentrant to false",
                    paste="--gradient_checkpointing_kwargs '{\"use_reentrant\": false}'",
                ),
            ),
        )


OF_CONFIG = re.compile(r"^(?:transformers|trl)\.(?:\w*Config|TrainingArguments)$")


def _asks_for_both(arguments: SourceCall) -> bool:
    """Whether a Trainer's arguments ask for re-entrant checkpoints, and keep DDP's default."""
    return (
        arguments.argument("gradient_checkpointing") == "True"
        and "'use_reentrant': True" in (arguments.argument("gradient_checkpointing_kwargs") or "")
        and "ddp_find_unused_parameters" not in arguments.keywords
    )


def of_a_shared_block(script: Script) -> Iterator[Finding]:
    """One block is checkpointed several times in a forward pass, under DDP."""
    models = script.of("torch.nn.parallel.DistributedDataParallel")
    for one in script.of("torch.utils.checkpoint.checkpoint") if models else ():
        block = one.arguments[0] if one.arguments else ""
        same = re.fullmatch(r"self\.\w+", block) is not None
        static = any(model.argument("static_graph") == "True" for model in models)
        if same and "loop" in one.within and _is_reentrant(one) and not static:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} checkpoints {block} several times in the re-entrant way: "
                "DDP gets the gradients of its parameters once for each",
                fixes=(
                    Fix.python(
                        summary="set use_reentrant=False",
                        paste=_not_reentrant(one),
                    ),
                ),
            )
            return


def of_a_frozen_model(
    script: Script, launch: Launch, software: Software | None
) -> Iterator[Finding]:
    """The inputs of checkpointed blocks need no gradient, so the adapters in them get none."""
    used = version("transformers", launch, software)
    # transformers/modeling_utils.py: from 5.0 on it gives the embeddings' outputs a gradient.
    if used is not None and used.value.partition(".")[0] not in OLD:
        return
    for one in script.frozen_checkpoints:
        yield Finding(
            severity=Severity.ERROR if used is not None else Severity.WARNING,
            confidence=Confidence.LIKELY,
            title="Adapters inside re-entrant checkpoints get no gradient",
            because=f"{shown(one.at)} checkpoints in the re-entrant way a model that "
            f"{shown(one.frozen)} freezes, and no line calls enable_input_require_grads: the "
            "inputs of its blocks need no gradient, so the adapters get none"
            + (" (before transformers 5)" if used is None else ""),
            evidence=(
                (Observation(name="transformers", value=used.value, source=used.at),)
                if used is not None
                else ()
            ),
            fixes=(
                Fix.python(
                    summary="set use_reentrant=False",
                    paste="model.gradient_checkpointing_enable("
                    'gradient_checkpointing_kwargs={"use_reentrant": False})',
                ),
                Fix.python(
                    summary="or let the inputs of the blocks need a gradient",
                    paste="model.enable_input_require_grads()",
                ),
            ),
        )
        return


_STATIC = Fix.python(
    summary="or set static_graph=True, if every step builds the same graph",
    paste="model = DistributedDataParallel(model, ..., static_graph=True)",
    caution="fails with branches, or with parameters that only some steps use",
    settings=("ddp.static_graph=true",),
)


def _parameter(message: str) -> str:
    if found := NAMED.search(message):
        return found[1]
    found = NUMBERED.search(message)
    return f"parameter number {found[1]}" if found else "a parameter"


def _without(words: FrameworkWords, *, reentrant: bool) -> Iterator[str]:
    plain = f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant={reentrant})"
    yield words.written("reentrant", reentrant, plain)


# As a keyword, or as a key of a dictionary.
ASKED = re.compile(r"""(use_reentrant['"]?\s?[:=]\s?)True""")


def _is_reentrant(call: SourceCall) -> bool:
    given = call.argument("gradient_checkpointing_kwargs", 0) or ""
    return call.argument("use_reentrant") == "True" or ASKED.search(given) is not None


def _not_reentrant(call: SourceCall) -> str:
    """The statement of such a call, or its argument alone, with the other setting."""
    corrected, count = ASKED.subn(r"\1False", call.at.text)
    whole = count and len(call.at.text) < LONG
    return corrected if whole else 'gradient_checkpointing_kwargs={"use_reentrant": False}'
