"""The forecast of memory and step time against training steps on this machine's GPU.

Each row's first steps warm up; the peak of the allocator is of all its steps. None of the
forecast's constants was fitted to a row. Exit code 2: there is no GPU.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import median

import torch  # noqa: TID253
import transformers  # noqa: TID253
from torch import nn  # noqa: TID253

from ddoctor import knowledge
from ddoctor.evidence.known_hardware import GpuModels
from ddoctor.evidence.plan import Checkpointing
from ddoctor.forecast import timing
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.devices import PlannedGpu
from ddoctor.forecast.model import optimizers
from ddoctor.forecast.model.blueprint import Blueprint
from ddoctor.forecast.model.forecasting import Forecast
from ddoctor.forecast.model.recomputing import recompute
from ddoctor.forecast.options import Precision

GIB = 2**30
WARM_UPS, STEPS = 4, 8
FORECASTS_AT_ONCE = 6
KINDS = {
    "allocated": ("GiB", GIB),
    "reserved": ("GiB", GIB),
    "used": ("GiB", GIB),
    "seconds": ("ms", 1e-3),
}


def _llama(width: int, layers: int, heads: int, inner: int, words: int) -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        intermediate_size=inner,
        vocab_size=words,
        max_position_embeddings=4096,
    )
    return transformers.LlamaForCausalLM(config)


BERT_LARGE = transformers.BertConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)
GPT2_MEDIUM = transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16)
VIT_LARGE = transformers.ViTConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)
BUILDS: Mapping[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
    "GPT-2 medium": lambda: transformers.GPT2LMHeadModel(GPT2_MEDIUM),
    "BERT large": lambda: transformers.BertForMaskedLM(BERT_LARGE),
    "T5 base": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=768,
            d_ff=3072,
            num_layers=12,
            num_heads=12,
            decoder_start_token_id=0,  # type: ignore[call-arg]
        )
    ),
    "Llama 1B": lambda: _llama(2048, 16, 32, 8192, 128_256),
    "ViT large": lambda: transformers.ViTForImageClassification(VIT_LARGE),
    "ResNet-50": lambda: transformers.ResNetForImageClassification(transformers.ResNetConfig()),
}
ON_IMAGES = ("ViT large", "ResNet-50")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What is trained, in one micro-batch a step with AdamW."""

    model: str
    samples: int
    length: int
    """Tokens of a sample, or pixels of a side."""
    precision: Precision
    checkpointing: Checkpointing = "none"

    def batch(self, samples: int, length: int) -> dict[str, torch.Tensor]:
        """Return random inputs on the CPU."""
        if self.model in ON_IMAGES:
            images = torch.randn(samples, 3, length, length)
            return {"pixel_values": images, "labels": torch.zeros(samples, dtype=torch.long)}
        ids = torch.randint(0, 30_000, (samples, length))
        return {"input_ids": ids, "labels": ids.clone()}


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The memory in bytes and the seconds of a step."""

    allocated: float
    reserved: float
    used: float
    """With the CUDA context: what nvidia-smi shows of a GPU that nobody else uses."""
    seconds: float


ROWS = (
    Trained(model="GPT-2", samples=16, length=1024, precision="bf16-mixed"),
    Trained(model="GPT-2", samples=64, length=256, precision="fp32"),
    Trained(model="GPT-2 medium", samples=8, length=1024, precision="bf16"),
    Trained(
        model="GPT-2 medium", samples=16, length=1024, precision="bf16-mixed", checkpointing="every"
    ),
    Trained(model="BERT large", samples=32, length=512, precision="bf16-mixed"),
    Trained(model="BERT large", samples=8, length=512, precision="fp32"),
    Trained(model="BERT large", samples=64, length=128, precision="fp16-mixed"),
    Trained(model="T5 base", samples=16, length=512, precision="bf16-mixed"),
    Trained(model="Llama 1B", samples=2, length=2048, precision="bf16-mixed"),
    Trained(model="Llama 1B", samples=4, length=4096, precision="bf16"),
    Trained(
        model="Llama 1B", samples=4, length=4096, precision="bf16-mixed", checkpointing="every"
    ),
    Trained(
        model="Llama 1B",
        samples=4,
        length=2048,
        precision="bf16-mixed",
        checkpointing="selective:op",
    ),
    Trained(model="ViT large", samples=64, length=224, precision="bf16-mixed"),
    Trained(model="ResNet-50", samples=256, length=224, precision="bf16-mixed"),
    Trained(model="ResNet-50", samples=64, length=224, precision="fp32"),
)


def forecast(row: Trained, gpu: str) -> Needs:
    """Return what is told of a row."""
    warnings.simplefilter("ignore")
    blueprint = Blueprint(name=row.model, build=BUILDS[row.model], batch=row.batch)
    made = Forecast(
        blueprint=blueprint,
        precision=row.precision,
        optimizer="adamw",
        samples=row.samples,
        length=row.length,
        checkpointing=row.checkpointing,
    )
    one = ForecastRow(strategy="one-gpu", gpus=1)
    parts = made.parts(one)
    whole = blueprint.read(row.precision, "adamw")
    model = knowledge.load(GpuModels).find(gpu)
    device = PlannedGpu(name=gpu, memory=0, model=model)
    step = timing.by_roofline(replace(whole, work=made.work), device, one)
    return Needs(
        allocated=parts.total - parts.context - parts.unused,
        reserved=parts.total - parts.context,
        used=parts.total,
        seconds=step.seconds if step is not None else 0.0,
    )


def measure(row: Trained) -> Needs:
    """Train some steps on the GPU, without anything left of the row before."""
    gc.collect()
    torch.cuda.empty_cache()
    with torch.device("cuda"):
        model = BUILDS[row.model]().train()
    if row.precision == "bf16":
        model.to(torch.bfloat16)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    recompute(model, row.checkpointing)
    optimizer = optimizers.made("adamw", list(model.parameters()))
    batch = {name: one.to("cuda") for name, one in row.batch(row.samples, row.length).items()}
    half = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(row.precision)
    times = []
    for _ in range(WARM_UPS + STEPS):
        begin, end = _event(), _event()
        begin.record()
        with torch.autocast("cuda", half, enabled=half is not None):
            outputs = model(**batch)
        outputs.loss.backward()
        del outputs
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return Needs(
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        used=torch.cuda.max_memory_reserved() + _used() - torch.cuda.memory_reserved(),
        seconds=median(times[WARM_UPS:]),
    )


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _used() -> float:
    import pynvml

    pynvml.nvmlInit()
    return float(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def main() -> int:
    """Forecast and measure each row; print both."""
    warnings.simplefilter("ignore")
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if not name:
        print("torch sees no GPU on this machine; nothing was measured", file=sys.stderr)
        return 2
    with ProcessPoolExecutor(FORECASTS_AT_ONCE, mp_context=get_context("spawn")) as pool:
        told = list(pool.map(forecast, ROWS, [name] * len(ROWS)))
    errors: dict[str, list[float]] = {one: [] for one in KINDS}
    for row, ours in zip(ROWS, told, strict=True):
        real = measure(row)
        cells = []
        for kind, (unit, size) in KINDS.items():
            ours_now, real_now = getattr(ours, kind), getattr(real, kind)
            errors[kind].append(ours_now / real_now - 1)
            cells.append(
                f"{kind} {real_now / size:6.2f} {unit}, told {ours_now / size:6.2f} "
                f"({errors[kind][-1]:+.1%})"
            )
        title = f"{row.model} {row.samples}x{row.length} {row.precision} {row.checkpointing}"
        print(f"{title:48}" + "; ".join(cells), flush=True)
    for kind, found in errors.items():
        sizes = sorted(map(abs, found))
        print(
            f"{kind}: off by {median(sizes):.1%} in the median, {sizes[-1]:.1%} at worst, "
            f"from {min(found):+.1%} to {max(found):+.1%}, of {len(found)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
