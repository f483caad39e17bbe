"""FSDP cannot flatten parameters of different types, or of which only some are trained, into one.

FSDP1 joins the parameters of a wrapped module into one flat parameter. All of them need the same
data type and, without ``use_orig_params``, the same ``requires_grad``. Adapters such as LoRA in
float32 on a model in float16 break the first rule, frozen layers the second.

Symptoms: "Must flatten tensors with uniform dtype" or "uniform `requires_grad`" at wrapping.

To fix it, give all parameters one type, and set ``use_orig_params=True``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.script_source import shown, with_keywords
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity

# Policies that wrap what is trained by itself, such as peft's own.
BY_GRADIENTS = re.compile(r"lambda|fsdp_auto_wrap_policy|_or_policy")
BY_BLOCKS = re.compile(r"transformer_auto_wrap_policy|size_based_auto_wrap|ModuleWrapPolicy")
APART = {"**", "ignored_modules", "ignored_states", "ignored_parameters"}
EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")


def in_the_source(script: Script) -> Iterator[Finding]:
    """An adapter's trained weights, and frozen ones, get into one flat parameter."""
    adapted = [(one.at, "") for one in script.of("peft.get_peft_model")]
    adapted += ((one.at, one.trained) for one in script.mixed_layers)
    wraps = script.of("torch.distributed.fsdp.FullyShardedDataParallel")
    for one in wraps:
        named = one.argument("auto_wrap_policy")
        policy = f"{named} {one.values.get('auto_wrap_policy')}"
        apart = BY_GRADIENTS.search(policy) or APART & {*one.keywords}
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
