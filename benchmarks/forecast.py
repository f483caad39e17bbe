"""The forecast of a step's memory against what the allocator gave, beside other estimators.

Small models, AdamW in fp32, without and with autocast to bfloat16, and in each way to spread or
checkpoint them, on CPU tensors; truth is the allocator's own events. Beside ours:
`accelerate estimate-memory`, which knows parameters, gradients and optimizer, and DeepSpeed's
estimator of ZeRO-2 on one GPU where it is installed (``pip install deepspeed``). Then how long the
forecast of large models takes, with which memory.
Exit code 1: the median error is above 0.5 %, the worst above 3 %, or more than 10 % are too low.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch  # noqa: TID253
import transformers  # noqa: TID253
from torch import nn  # noqa: TID253

from ddoctor.evidence.plan import Strategy
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.model.blueprint import Blueprint, on_meta
from ddoctor.forecast.model.forecasting import Forecast
from tests.forecast import truth
from tests.forecast.model_set import SET
from tests.forecast.on_cpu import footprint
from tests.forecast.ways import FAILS, WAYS, AdamW

MEDIAN, WORST, TOO_LOW = 0.005, 0.03, 0.1
# A rank more or less in the rounding of a shard.
NOTHING = 1e-4
MIB, GIB = 2**20, 2**30
# Llama 3.2 1B and Llama 3.1 70B, by their published configurations.
LARGE: Mapping[str, Mapping[str, Any]] = {
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
    },
    "70B": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
LENGTH = 4096
GPUS = (1, 2, 4, 8, 16, 32, 64)
STRATEGIES: tuple[Strategy, ...] = ("ddp", "fsdp-gradients", "fsdp")


def main() -> int:
    """Measure, and say what it comes to."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    print(f"{'':24}{'truth':>10}{'ddoctor':>18}{'accelerate':>18}{'DeepSpeed':>18}   MiB")
    errors = [_row(name, dtype) for name in SET for dtype in (None, torch.bfloat16)]
    for number, way in enumerate(WAYS, 1):
        print(f"{number}: {way}")
    print(f"{'':24}" + "".join(f"{number:>9}" for number in range(1, len(WAYS) + 1)))
    for name in SET:
        errors += _ways(name)
    usual, worst = median(map(abs, errors)), max(map(abs, errors))
    below = sum(one < -NOTHING for one in errors) / len(errors)
    print(
        f"off by {usual:.2%} in the median, {worst:.2%} at worst, of {len(errors)}; too low in "
        f"{below:.0%}"
    )
    for name, settings in LARGE.items():
        _large(name, settings)
    return 0 if usual <= MEDIAN and worst <= WORST and below <= TOO_LOW else 1


def _row(name: str, dtype: torch.dtype | None) -> float:
    case = SET[name]
    real = truth.peak(case.build, case.batch, AdamW, dtype)
    ours = footprint(case.build, case.batch, AdamW, autocast=dtype).total
    model = on_meta(case.build)
    others = [_accelerate(model, dtype), _deepspeed(model)]
    cells = "".join(
        f"{size / MIB:10.1f} {size / real - 1:+7.1%}" if size else f"{'–':>18}"
        for size in (ours, *others)
    )
    title = name + (", bf16" if dtype is not None else "")
    print(f"{title:24}{real / MIB:10.1f}{cells}", flush=True)
    return ours / real - 1


def _ways(name: str) -> list[float]:
    case = SET[name]
    errors = {}
    for way, settings in WAYS.items():
        if (way, name) not in FAILS:
            ours = footprint(case.build, case.batch, AdamW, **settings).total
            errors[way] = ours / truth.peak(case.build, case.batch, AdamW, **settings) - 1
    cells = (f"{errors[way]:+9.2%}" if way in errors else f"{'–':>9}" for way in WAYS)
    print(f"{name:24}" + "".join(cells), flush=True)
    return list(errors.values())


def _accelerate(model: nn.Module, dtype: torch.dtype | None) -> int:
    whole, _ = import_module("accelerate.utils").calculate_maximum_sizes(model)
    kind = "float32" if dtype is None else "bfloat16"
    told = import_module("accelerate.commands.estimate").estimate_training_usage(whole, kind)
    return int(max(size for size in told.values() if size > 0))


def _deepspeed(model: nn.Module) -> int:
    if find_spec("deepspeed") is None:
        return 0
    estimators = import_module("deepspeed.runtime.zero.stage_1_and_2")
    number = sum(one.numel() for one in model.parameters())
    _, on_gpu = estimators.estimate_zero2_model_states_mem_needs(number, 1, 1, cpu_offload=False)
    return int(on_gpu)


def _large(name: str, settings: Mapping[str, Any]) -> None:
    config = transformers.LlamaConfig(vocab_size=128_256, num_key_value_heads=8, **settings)

    def batch(samples: int, length: int) -> dict[str, torch.Tensor]:
        ids = torch.zeros(samples, length, dtype=torch.long)
        return {"input_ids": ids, "labels": ids.clone()}

    build: Callable[[], nn.Module] = partial(transformers.LlamaForCausalLM, config)
    began = time.perf_counter()
    blueprint = Blueprint(name=name, build=build, batch=batch)
    forecast = Forecast(
        blueprint=blueprint, precision="bf16-mixed", optimizer="adamw", samples=1, length=LENGTH
    )
    rows = [
        forecast.parts(ForecastRow(strategy=way, gpus=gpus)) for gpus in GPUS for way in STRATEGIES
    ]
    seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{name}, {LENGTH} tokens: {len(rows)} rows of DDP and FSDP on {GPUS[0]} to {GPUS[-1]} "
        f"GPUs, {rows[0].total / GIB:.1f} to {rows[-1].total / GIB:.1f} GiB, in {seconds:.1f} s; "
        f"this process never had more than {most / GIB:.2f} GiB"
    )


if __name__ == "__main__":
    sys.exit(main())
