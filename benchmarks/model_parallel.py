"""The forecast under model parallelism beside published measurements: none was tuned to them.

Source: torchtitan's benchmarks of December 2024 (H100s with 96 GB, 2.4 TB/s and 500 W), with
torch.compile and float8, which the forecast does not know. Memory is what the allocator reserved.
A part of a name runs only the rows that have it: ``python -m benchmarks.model_parallel 70B``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch  # noqa: TID253
import transformers  # noqa: TID253

from ddoctor.evidence.plan import Checkpointing, ModelParallel, Strategy
from ddoctor.forecast import devices, timing
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model import parts
from ddoctor.forecast.model.blueprint import Batch, Blueprint
from ddoctor.forecast.model.forecasting import Forecast

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published training, with its peak memory and its speed."""

    name: str
    build: Callable[[], Any]
    gpus: int
    parallel: ModelParallel
    strategy: Strategy
    turns: int = 1
    """Micro-batches per optimizer step."""
    samples: int
    """Samples of a micro-batch."""
    tokens: int
    checkpointing: Checkpointing = "every"
    memory: float
    """GiB."""
    rate: float
    """Tokens per second on each GPU."""


def decoder(hidden: int, inner: int, blocks: int, heads: int) -> Callable[[], Any]:
    """Make a Llama 3.1."""
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        max_position_embeddings=2**19,
        num_key_value_heads=8,
        vocab_size=128_256,
    )
    return partial(transformers.LlamaForCausalLM, config)


SMALL = decoder(4096, 14_336, 32, 32)
LARGE = decoder(16_384, 53_248, 128, 128)
SLICES = (
    (1, 2**15, 83.9, 3890),
    (2, 2**16, 84.2, 2540),
    (4, 2**17, 84.0, 1071),
    (8, 2**18, 84.5, 548),
)
FOUR = ((1, 2**15, 75.3, 76), (2, 2**16, 75.9, 47), (4, 2**17, 77.1, 31), (8, 2**18, 84.9, 16))
ROWS = (
    *(
        Row(
            name=f"torchtitan 8B, context {size}",
            build=SMALL,
            gpus=8,
            parallel=ModelParallel(context=size),
            strategy="fsdp",
            samples=1,
            tokens=tokens,
            memory=memory,
            rate=rate,
        )
        for size, tokens, memory, rate in SLICES
    ),
    Row(
        name="torchtitan 70B, tensor 8",
        build=decoder(8192, 28_672, 80, 64),
        gpus=256,
        parallel=ModelParallel(tensor=8),
        strategy="fsdp",
        samples=16,
        tokens=8192,
        memory=71.9,
        rate=829,
    ),
    Row(
        name="torchtitan 405B, tensor 8, pipeline 8",
        build=LARGE,
        gpus=512,
        parallel=ModelParallel(tensor=8, pipeline=8),
        strategy="fsdp-gradients",
        turns=8,
        samples=4,
        tokens=8192,
        memory=82.5,
        rate=100,
    ),
    *(
        Row(
            name=f"torchtitan 405B, tensor 8, pipeline 8, context {size}",
            build=LARGE,
            gpus=512,
            parallel=ModelParallel(tensor=8, pipeline=8, context=size),
            strategy="fsdp-gradients",
            turns=8,
            samples=1,
            tokens=tokens,
            memory=memory,
            rate=rate,
        )
        for size, tokens, memory, rate in FOUR
    ),
)


def batch(samples: int, length: int) -> Batch:
    """Make token ids that are their own labels."""
    ids = torch.zeros(samples, length, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def line(one: Row) -> str:
    """Return the forecast beside the measurement, in a row of a table."""
    blueprint = Blueprint(name=one.name, build=one.build, batch=batch, longest=2**19)
    whole = Forecast(
        blueprint=blueprint,
        precision="bf16-mixed",
        optimizer="adamw",
        samples=one.samples,
        length=one.tokens,
        checkpointing=one.checkpointing,
    )
    model, forecast = parts.divided(blueprint, whole, one.parallel)
    way = ForecastRow(
        strategy=one.strategy, gpus=one.gpus, accumulation=one.turns, parallel=one.parallel
    )
    memory = forecast.parts(way)
    step = timing.by_roofline(model, devices.find("h100-80"), way)
    tokens = one.samples * one.tokens * one.turns / one.parallel.gpus
    rate = tokens / step.seconds if step is not None else 0.0
    return (
        f"| {one.name} | {one.memory} | {(memory.used - memory.context) / GIB:.1f} | "
        f"{(memory.total - memory.context) / GIB:.1f} | {one.rate:.0f} | {rate:.0f} |"
    )


def main(wanted: str) -> None:
    """Print the table."""
    print("| row | published, GiB | allocated | reserved | tokens/s per GPU | forecast |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for one in ROWS:
        if wanted in one.name:
            print(line(one), flush=True)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
