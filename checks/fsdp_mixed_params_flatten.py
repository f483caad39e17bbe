"""FSDP cannot flatten parameters of different types, or of which only some are trained, into one.

FSDP1 joins the parameters of a wrapped module into one flat parameter. All of them need the same
data type and, without ``use_orig_params``, the same ``requires_grad``. Adapters such as LoRA in
float32 on a model in float16 break the first rule, frozen layers the second.

Symptoms: "Must flatten tensors with uniform dtype" or "uniform `requires_grad`" at wrapping.

To fix it, give all parameters one type, and set ``use_orig_params=True``.
"""

# Above 150 lines: weights differ in type or in gradients, for scripts of torch and of accelerate.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import shown, with_keywords
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# Policies that wrap what is trained by itself, such as peft's own.
BY_GRADIENTS = re.compile(r"lambda|fsdp_auto_wrap_policy|_or_policy")
BY_BLOCKS = re.compile(r"transformer_auto_wrap_policy|size_based_auto_wrap|ModuleWrapPolicy")
# Classes within a block: a policy that names one makes units of its own within the blocks.
WITHIN_BLOCKS = re.compile(r"\b\w*(?:Linear|Embedding|Norm|MLP|Mlp|Attention|FeedForward)\b")
APART = {"**", "ignored_modules", "ignored_states", "ignored_parameters"}
EXPLAINS = ("dead-rank", "first-failure-masked", "fsdp-use-orig-params", "script-error")


def in_the_source(script: Script) -> Iterator[Finding]:
    """An adapter's trained weights, and frozen ones, get into one flat parameter."""
    adapted = [(one.at, "") for one in script.of("peft.get_peft_model")]
    adapted += ((one.at, one.trained) for one in script.mixed_layers)
    wraps = script.of(FSDP)
    for one in wraps:
        named = one.argument("auto_wrap_policy")
        policy = f"{named} {one.values.get('auto_wrap_policy')}"
        apart = APART & {*one.keywords} or _apart(policy)
        # What another function makes may wrap the adapter by itself.
        whole = named in (None, "None") and len(wraps) == 1
        known = whole or BY_BLOCKS.search(policy)
        flattens = one.argument("use_orig_params") in (None, "False")
        # A class that the policy names gets its own flat parameter.
        inside = [at for at, name in adapted if not name or not re.search(rf"\b{name}\b", policy)]
        if inside and flattens and known and not apart:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(inside[0])} trains some weights of a block and freezes the "
                f"others, and {shown(one.at)} flattens them together: FSDP refuses that",
                fixes=(
                    Fix.python(
                        summary="keep the original parameters",
                        paste=with_keywords(one, use_orig_params="True"),
                    ),
                ),
            )
            return


def _apart(policy: str) -> bool:
    """Whether it may wrap parts of a block by themselves."""
    return any(one.search(policy) for one in (BY_GRADIENTS, WITHIN_BLOCKS))


def with_accelerate(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Frozen weights and trained ones, where accelerate wraps whole blocks."""
    kept = plan.launch.get("fsdp.use_orig_params")
    prepared = script.of(".prepare", *OF_TRAINER)
    if (
        kept is None
        or kept.value.lower() != "false"
        or not prepared
        or not _by_blocks(plan, script)
    ):
        return
    for one in script.mixed_layers[:1]:
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"{shown(one.at)} trains some weights of a block and freezes the others, and "
            f"fsdp_use_orig_params is off ({kept.at}): FSDP refuses to flatten them together",
            evidence=(Observation(name="use_orig_params", value="false", source=kept.at),),
            fixes=(
                Fix(
                    summary="keep the original parameters",
                    paste="fsdp_use_orig_params: true",
                    language="yaml",
                ),
            ),
        )


def of_two_types(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Parts of a model in 16 bits are made float32 before FSDP flattens them with the others."""
    for one in script.mixed_types:
        wrap = next((each for each in _wraps(plan, script) if _takes(each, one.model)), None)
        if wrap is not None:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.loaded)} loads a model in 16 bits, {shown(one.at)} makes a "
                f"part of it float32, and {shown(wrap.at)} flattens both types together: FSDP "
                "refuses that",
                fixes=(
                    Fix.python(
                        summary="give all parameters one type again before FSDP wraps them",
                        paste=f"{one.model}.to(torch.float32)",
                        caution="and let FSDP's mixed precision compute in bfloat16",
                    ),
                ),
            )
            return


OF_TRAINER = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer")
FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"


def _wraps(plan: LaunchPlan, script: Script) -> Iterator[SourceCall]:
    """The calls that flatten whole blocks, and what is left of the model."""
    wraps = script.of(FSDP)
    for one in wraps:
        named = one.argument("auto_wrap_policy", 3)
        policy = f"{named} {one.values.get('auto_wrap_policy')}"
        blocks = "transformer_auto_wrap_policy" in policy or "ModuleWrapPolicy" in policy
        whole = named in (None, "None") and len(wraps) == 1
        if (blocks or whole) and not APART & {*one.keywords} and not _apart(policy):
            yield one
    if _by_blocks(plan, script):
        yield from script.of(".prepare", *OF_TRAINER)


def _by_blocks(plan: LaunchPlan, script: Script) -> bool:
    """Whether accelerate wraps by FSDP1 whole blocks, or the model as one."""
    policy = plan.launch.get("fsdp.auto_wrap_policy")
    classes = plan.launch.get("fsdp.transformer_layer_cls_to_wrap")
    own = [one for one in script.calls if one.name.endswith(POLICIES)]
    return (
        plan.strategy == "FSDP1"
        and (policy is None or policy.value in ("TRANSFORMER_BASED_WRAP", "NO_WRAP"))
        and (classes is None or not WITHIN_BLOCKS.search(classes.value))
        and plan.launch.get("fsdp.ignored_modules") is None
        and not own
    )


# A script that gives accelerate a policy itself; peft's wraps what is trained alone.
POLICIES = ("FullyShardedDataParallelPlugin", "fsdp_auto_wrap_policy")


def _takes(call: SourceCall, model: str) -> bool:
    given = (*call.arguments, *(call.keywords.get(name, "") for name in ("module", "model")))
    return any(re.match(rf"{re.escape(model)}(?:\.(?:cuda|to)\(|$)", one) for one in given)


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("flatten-dtype", "flatten-grad"):
        types = event.pattern == "flatten-dtype"
        yield log_events.finding(
            [event],
            "a module that FSDP wraps has parameters of several types"
            if types
            else "a module that FSDP wraps has parameters of which only some are trained",
            Fix.python(
                summary="cast all parameters to one type before they are wrapped",
                paste="model = FSDP(model.to(torch.bfloat16), use_orig_params=True)",
            )
            if types
            else Fix.python(
                summary="keep the original parameters", paste="FSDP(model, use_orig_params=True)"
            ),
            confidence=Confidence.CERTAIN,
        )
