"""Model parallelism in numbers: the part of each GPU, and the bytes that the dimensions move.

Groups of GPUs lie as in Megatron-LM and torchtitan: tensor-parallel ones are neighbours, then come
context, expert and data parallelism, and pipeline stages are farthest apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import GPUS_PER_HOST, Checkpointing, ModelParallel
from ddoctor.forecast.closed_form import COMPUTING, Model, Traffic
from ddoctor.forecast.options import Precision

if TYPE_CHECKING:
    from ddoctor.forecast.exchange import PlannedLinks

# Of a block with sequence parallelism (arXiv 2205.05198, section 4.2.2): an all-gather and a
# reduce-scatter around attention and around the MLP, in the forward pass and in the backward pass.
# A second all-gather in the backward pass lies behind the gradients of the weights.
TENSOR_PASSES = 4
# Of attention over divided sequences: an all-gather of keys and values, in the backward pass with a
# reduce-scatter of their gradients (arXiv 2407.21783, section 3.3.2).
CONTEXT_PASSES = 1, 2
# Of experts: tokens to their experts and back (arXiv 2006.16668).
EXPERT_PASSES = 2


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The sizes of a language model that its communication depends on."""

    hidden: int
    """Width of the activations between blocks."""
    heads: int
    """Number of attention heads."""
    key_heads: int
    """Number of heads of keys and of values."""
    head: int
    """Width of each head."""
    blocks: int
    """Number of blocks."""
    experts: int = 0
    """Number of experts in a block; 0: none."""
    chosen: int = 0
    """Number of experts that each token goes to."""

    def check(self, parallel: ModelParallel) -> None:
        """Check that each dimension divides what it must.

        Raises:
            DoctorError: one does not.
        """
        if parallel.expert > 1 and not self.experts:
            raise DoctorError("--ep divides experts, and the model has none: leave it out")
        wanted = (
            ("--tp", parallel.tensor, self.heads, "attention heads"),
            ("--tp", parallel.tensor, self.key_heads, "heads of keys and values"),
            ("--pp", parallel.pipeline, self.blocks, "blocks"),
            ("--ep", parallel.expert, self.experts, "experts"),
        )
        for option, size, count, what in wanted:
            _check_divides(option, size, count, what)

    def traffic(
        self, parallel: ModelParallel, tokens: int, precision: Precision, checkpointing: str
    ) -> Traffic:
        """Return what each GPU moves for a micro-batch with this number of tokens in all."""
        blocks = self.blocks / parallel.pipeline
        again = _recomputed(checkpointing)
        own = tokens / parallel.context * self.hidden * COMPUTING[precision]
        keys = 2 * tokens * self.key_heads * self.head * COMPUTING[precision] / parallel.tensor
        forward, backward = CONTEXT_PASSES
        # After the embedding, and before the head.
        passes = blocks * TENSOR_PASSES * (2 + again) + 2
        return Traffic(
            tensor=_others(parallel.tensor) * passes * own,
            context=_others(parallel.context) * blocks * (forward * (1 + again) + backward) * keys,
            expert=_others(parallel.expert)
            * parallel.expert_load
            * blocks
            * EXPERT_PASSES
            * (2 + again)
            * self.chosen
            * own
            / parallel.tensor,
            pipeline=2 * own / parallel.tensor if parallel.pipeline > 1 else 0.0,
        )


def in_numbers(model: Model, parallel: ModelParallel, *, layers: int | None) -> Model:
    """Return one GPU's part of a model in numbers; ``layers``: as the user gave them, or None.

    Sequence parallelism divides all activations of a block by the size of tensor parallelism
    (arXiv 2205.05198, equation 4).

    Raises:
        DoctorError: the numbers do not say what is asked for.
    """
    if parallel.expert > 1:
        raise DoctorError("--ep goes with --model: --params does not say which are experts")
    if layers is not None:
        _check_divides("--pp", parallel.pipeline, layers, "layers")
    shares = parallel.tensor * parallel.pipeline
    return replace(
        model,
        parameters=model.parameters / shares,
        trainable=model.trainable / shares,
        activations=round(model.activations / parallel.gpus),
        layers=max(1, model.layers // parallel.pipeline),
    )


def seconds(traffic: Traffic, parallel: ModelParallel, links: PlannedLinks) -> float | None:
    """Return the seconds of a micro-batch's communication, all exposed; None: an unknown link."""
    found = 0.0
    for moved, reach in _reaches(traffic, parallel):
        link = links.within if reach <= GPUS_PER_HOST else links.between
        if moved and link is None:
            return None
        found += moved / link.rate if link is not None else 0.0
    return found


def _reaches(traffic: Traffic, parallel: ModelParallel) -> Iterator[tuple[float, int]]:
    """Yield bytes of each dimension, and the number of neighbouring GPUs among which they move."""
    near = parallel.tensor * parallel.context
    yield traffic.tensor, parallel.tensor
    yield traffic.context, near
    yield traffic.expert, near * parallel.expert
    yield traffic.pipeline, near * parallel.expert * parallel.pipeline


def _others(size: int) -> float:
    return (size - 1) / size


def _recomputed(checkpointing: Checkpointing) -> float:
    """Return the share of blocks whose forward pass runs twice, with its communication.

    Selective checkpointing keeps what comes from other GPUs (torchtitan, activation_checkpoint.py).
    """
    policy = checkpointing.partition(":")[2]
    if policy.isdecimal():
        return 1 / int(policy)
    return 1.0 if checkpointing == "every" else 0.0


def _check_divides(option: str, size: int, count: int, what: str) -> None:
    if size > 1 and count % size:
        raise DoctorError(
            f"{option} {size}: it must divide the model's {count} {what}: use "
            f"{', '.join(map(str, _divisors(count)))}"
        )


def _divisors(count: int) -> list[int]:
    return [one for one in range(1, min(count, 64) + 1) if count % one == 0]
