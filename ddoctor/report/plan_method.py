"""The lines of a plan's report on DPO and GRPO."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.plan import Plan

GIB = 2**30


def lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line; none for supervised training."""
    if plan.method == "sft":
        return
    parts = [_samples(plan)]
    if plan.method != "grpo:beta=0":
        parts.append(_reference(plan))
    yield "method", "; ".join(parts)
    if plan.method.startswith("grpo"):
        yield "generation", _generation(plan)


def _samples(plan: Plan) -> str:
    if plan.method == "dpo":
        return "DPO: each sample is a pair, so two rows"
    return "GRPO: each sample is one completion with its prompt"


def _reference(plan: Plan) -> str:
    size = plan.rows[plan.chosen or 0].parts.reference
    if size:
        return f"a frozen reference model takes {size / GIB:.1f} GiB of each GPU"
    # CPU offload moves it there from where the other rows have it.
    if any(row.parts.reference for row in plan.rows):
        return "a frozen reference model is in host memory"
    return "the reference is the model without its adapters, which takes no memory"


def _generation(plan: Plan) -> str:
    keys = plan.cache
    without = "step times do not include it"
    if keys:
        return f"keys and values take {keys / GIB:.2f} GiB per sample; {without}"
    taken = plan.rows[0].parts.generation
    if taken:
        return f"by vLLM, which takes {taken / GIB:.1f} GiB of each GPU; {without}"
    return f"on other GPUs; {without}"
