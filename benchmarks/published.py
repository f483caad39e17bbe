"""The forecast beside published measurements of GPU memory: nobody tuned it to them.

Each row is a measurement whose configuration is fully said, with the published hyper-parameters
written out. Sources: transformers' documentation (perf_train_gpu_one, 2022: a V100 with 16 GB,
eager attention, and an old torch, whose differences are written out too), torchtitan's pull
request 165 (H100, 95.04 GiB) and its benchmark of December 2024 (Llama 3.1), torchtune's README
(A100 with 80 GB). Rows with torch.compile are forecast with compiled blocks. Those of Llama 3.1
were measured with torchtitan at 9dec370: its script sets expandable_segments, and its loss is not
compiled (turned off eight days before). What is left out: sizes of batches that fit, and
torchtune's compiled row, whose kind of AdamW is not said (a fused one needs 6 GiB less than torch's
default).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import torch  # noqa: TID253
import transformers  # noqa: TID253
from msgspec.structs import replace as with_fields

from ddoctor.evidence.plan import Checkpointing, Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.forecast.options import Precision

MIB, GIB = 2**20, 2**30
TITAN = 95.04
OLD_CONTEXT = 1343 * MIB
"""As the same page prints for a GPU on which nothing but the kernels is loaded."""
LARGE: Mapping[str, Any] = {
    "vocab_size": 30_522,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_labels": 2,
}
BERT = transformers.BertConfig(**LARGE)
BERT._attn_implementation = "eager"
LLAMA_7B = transformers.LlamaConfig(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_hidden_layers=32,
    num_attention_heads=32,
)
LLAMA_8B = transformers.LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)
LLAMA_3B = transformers.LlamaConfig(
    vocab_size=128_256,
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=True,
)
BUILDS: Mapping[str, Callable[[], Any]] = {
    "bert-large": partial(transformers.BertForSequenceClassification, BERT),
    "llama 7B": partial(transformers.LlamaForCausalLM, LLAMA_7B),
    "llama 3.1 8B": partial(transformers.LlamaForCausalLM, LLAMA_8B),
    "llama 3.2 3B": partial(transformers.LlamaForCausalLM, LLAMA_3B),
}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A measurement, and what was trained."""

    model: str
    measured: float
    """GiB on each GPU."""
    kind: Literal["allocated", "reserved", "nvidia-smi"]
    """allocated or reserved: by torch's allocator; nvidia-smi: with the CUDA context."""
    samples: int
    length: int
    precision: Precision
    optimizer: str = "adamw"
    checkpointing: Checkpointing = "none"
    compiled: bool = False
    accumulation: int = 1
    strategy: Strategy = "one-gpu"
    gpus: int = 1
    expandable: bool = False
    """Whether the allocator's segments were."""
    old: bool = False
    """Whether torch was older than 1.11."""


def _bert(mebibytes: int, samples: int, precision: Precision = "fp32", **more: Any) -> Published:
    return Published(
        **{"optimizer": "adamw_hf", "old": True, **more},
        model="bert-large",
        measured=mebibytes / 1024,
        kind="nvidia-smi",
        samples=samples,
        length=512,
        precision=precision,
        accumulation=4 // samples,
    )


def _titan_8b(gibibytes: float, gpus: int, **more: Any) -> Published:
    return Published(
        **more,
        model="llama 3.1 8B",
        measured=gibibytes,
        kind="reserved",
        samples=2,
        length=8192,
        precision="bf16-mixed",
        checkpointing="selective:op",
        expandable=True,
        strategy="fsdp",
        gpus=gpus,
    )


def _titan(share: float, **more: Any) -> Published:
    return Published(
        model="llama 7B",
        measured=share * TITAN,
        samples=8,
        length=2048,
        precision="bf16-mixed",
        strategy="fsdp",
        gpus=8,
        **more,
    )


PUBLISHED = (
    _bert(14_949, 4),
    _bert(8_681, 1),
    _bert(6_775, 1, checkpointing="every"),
    _bert(13_939, 4, "fp16-mixed"),
    _bert(7_275, 1, "fp16-mixed", checkpointing="every"),
    _bert(12_295, 4, optimizer="adafactor"),
    _bert(4_847, 1, "fp16-mixed", checkpointing="every", optimizer="adafactor"),
    _bert(13_085, 4, optimizer="adamw_bnb_8bit"),
    _bert(5_363, 1, "fp16-mixed", checkpointing="every", optimizer="adamw_bnb_8bit"),
    _titan(0.2392, kind="allocated", checkpointing="every"),
    _titan(0.3264, kind="reserved", checkpointing="every"),
    _titan(0.5213, kind="allocated", checkpointing="selective:op"),
    _titan(0.6251, kind="reserved", checkpointing="selective:op"),
    Published(
        model="llama 3.2 3B",
        measured=60.0,
        kind="allocated",
        samples=2,
        length=4096,
        precision="bf16",
    ),
    _titan(90.28 / TITAN, kind="reserved", compiled=True),
    _titan_8b(82.4, 8),
    _titan_8b(67.0, 128),
    _titan_8b(77.0, 8, compiled=True),
    _titan_8b(62.0, 128, compiled=True),
)


class _OldSoftmax(torch.autograd.Function):
    """Until torch 1.10, its backward pass took the input, for its dtype (derivatives.yaml)."""

    @staticmethod
    def forward(context: Any, scores: torch.Tensor, dim: int) -> torch.Tensor:
        result = torch._softmax(scores, dim, half_to_float=False)
        context.save_for_backward(scores, result)
        context.dim = dim
        return result

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        scores, result = context.saved_tensors
        back = torch._softmax_backward_data(gradients[0], result, context.dim, scores.dtype)
        return back, None


@contextmanager
def _old_softmax() -> Iterator[None]:
    def softmax(scores: torch.Tensor, dim: int, **more: Any) -> torch.Tensor:
        # Under autocast it computes in fp32.
        wide = scores.float() if torch.is_autocast_enabled("cpu") else scores
        found: torch.Tensor = _OldSoftmax.apply(wide, dim)  # type: ignore[no-untyped-call]
        return found

    with patch("torch.nn.functional.softmax", softmax):
        yield


def main() -> int:
    """Forecast each row, and say how far off it is."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    errors = []
    for one in PUBLISHED:
        told = forecast(one)
        errors.append(told / one.measured - 1)
        print(
            f"{one.model:14}{one.samples}x{one.length} {one.precision:11}{one.optimizer:15}"
            f"{one.checkpointing:13}{'compiled, ' * one.compiled}"
            f"{one.accumulation} micro-batches, {one.strategy} on {one.gpus}"
            f"{one.kind:>12} {one.measured:6.2f} GiB, forecast {told:6.2f}, {errors[-1]:+.1%}",
            flush=True,
        )
    usual, worst = median(map(abs, errors)), max(map(abs, errors))
    print(f"off by {usual:.1%} in the median, {worst:.1%} at worst, of {len(errors)}")
    return 0


def forecast(one: Published) -> float:
    """Return the forecast of what was measured, in GiB."""
    sentences = one.model == "bert-large"

    def batch(samples: int, length: int) -> Mapping[str, torch.Tensor]:
        ids = torch.zeros(samples, length, dtype=torch.long)
        labels = torch.zeros(samples, dtype=torch.long) if sentences else ids.clone()
        return {"input_ids": ids, "labels": labels}

    made = Forecast(
        blueprint=Blueprint(name=one.model, build=BUILDS[one.model], batch=batch),
        precision=one.precision,
        optimizer=one.optimizer,
        samples=one.samples,
        length=one.length,
        checkpointing=one.checkpointing,
        compiled=one.compiled,
        expandable=one.expandable,
    )
    # Until torch 2.0, gradients stayed as zeros, as between micro-batches.
    accumulation = max(2, one.accumulation) if one.old else one.accumulation
    row = ForecastRow(strategy=one.strategy, gpus=one.gpus, accumulation=accumulation)
    with _old_softmax() if one.old else nullcontext():
        parts = made.parts(row)
    if one.old:
        parts = with_fields(parts, context=OLD_CONTEXT)
    beside = {"allocated": parts.context + parts.unused, "reserved": parts.context}
    return (parts.total - beside.get(one.kind, 0)) / GIB


if __name__ == "__main__":
    sys.exit(main())
