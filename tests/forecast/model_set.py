"""Small models of the kinds that people train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

VOCABULARY, CLASSES = 2000, 10
SAMPLES, LENGTH, SIDE = 4, 256, 128
Batch = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and what it is fed."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]


def _tokens() -> Batch:
    ids = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def _images() -> Batch:
    pixels = torch.randn(2 * SAMPLES, 3, SIDE, SIDE)
    return {"pixel_values": pixels, "labels": torch.randint(0, CLASSES, (2 * SAMPLES,))}


def _sounds() -> Batch:
    labels = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH // 4))
    return {"input_features": torch.randn(SAMPLES, 80, 2 * LENGTH), "labels": labels}


def _pairs() -> Batch:
    return {name: torch.randn(SAMPLES, 3, SIDE, SIDE) for name in ("noisy", "clean")}


def _made(config: str, model: str, **settings: Any) -> nn.Module:
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return made


def _text(config: str, model: str, **settings: Any) -> Case:
    build = partial(_made, config, model, vocab_size=VOCABULARY, **settings)
    return Case(build=build, batch=_tokens)


def _image(config: str, model: str, **settings: Any) -> Case:
    return Case(build=partial(_made, config, model, num_labels=CLASSES, **settings), batch=_images)


class UNet(nn.Module):
    """Two levels down, two up, each with what came down beside it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down = nn.ModuleList([_block(3, width), _block(width, 2 * width)])
        self.middle = _block(2 * width, 4 * width)
        self.up = nn.ModuleList([_block(6 * width, 2 * width), _block(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)
        self.smaller, self.larger = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, noisy: Tensor, clean: Tensor) -> ImageClassifierOutput:
        kept, x = [], noisy
        for block in self.down:
            kept.append(block(x))
            x = self.smaller(kept[-1])
        x = self.middle(x)
        for block in self.up:
            x = block(torch.cat([self.larger(x), kept.pop()], 1))
        # FSDP looks for the tensors in what a model returns, and knows this kind.
        return ImageClassifierOutput(loss=nn.functional.mse_loss(self.out(x), clean))


def _block(inputs: int, outputs: int) -> nn.Module:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(outputs, outputs, 3, padding=1), nn.SiLU())


class Adapter(nn.Module):
    """A frozen layer, and two narrow ones beside it that are trained."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.narrow = nn.Linear(base.in_features, rank, bias=False)
        self.wide = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x) + self.wide(self.narrow(x))
        return found


def _adapted(build: Callable[[], nn.Module]) -> nn.Module:
    model = build().requires_grad_(False)
    for module in list(model.modules()):
        for name in ("q_proj", "v_proj"):
            if isinstance(base := getattr(module, name, None), nn.Linear):
                setattr(module, name, Adapter(base))
    return model


LAYERS: Mapping[str, int] = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
}
GROUPED = {**LAYERS, "num_key_value_heads": 2}
LLAMA = _text("LlamaConfig", "LlamaForCausalLM", **LAYERS)
SET: Mapping[str, Case] = {
    "dense": LLAMA,
    "grouped": _text("LlamaConfig", "LlamaForCausalLM", **GROUPED),
    "sliding": _text("MistralConfig", "MistralForCausalLM", **GROUPED, sliding_window=64),
    "sliding and full": _text(
        "Gemma3TextConfig", "Gemma3ForCausalLM", **GROUPED, head_dim=32, sliding_window=64
    ),
    "normed heads": _text("Qwen3Config", "Qwen3ForCausalLM", **GROUPED, head_dim=32),
    # As it runs by default: by torch's grouped product of matrices.
    "experts": _text("MixtralConfig", "MixtralForCausalLM", **GROUPED, num_local_experts=4),
    "gpt2": _text("GPT2Config", "GPT2LMHeadModel", n_embd=256, n_layer=4, n_head=8),
    "encoder": _text("BertConfig", "BertForMaskedLM", **LAYERS),
    "encoder and decoder": _text(
        "T5Config",
        "T5ForConditionalGeneration",
        d_model=256,
        d_ff=1024,
        num_layers=3,
        num_heads=8,
        d_kv=32,
        decoder_start_token_id=0,
    ),
    "sound to text": Case(
        build=partial(
            _made,
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            vocab_size=VOCABULARY,
            d_model=256,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            max_source_positions=LENGTH,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        ),
        batch=_sounds,
    ),
    "vit": _image("ViTConfig", "ViTForImageClassification", **LAYERS, image_size=SIDE),
    "cnn with batch norm": _image(
        "ResNetConfig",
        "ResNetForImageClassification",
        embedding_size=32,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
    ),
    "depthwise": _image(
        "ConvNextConfig",
        "ConvNextForImageClassification",
        hidden_sizes=[48, 96, 192, 384],
        depths=[2, 2, 2, 2],
    ),
    "narrow blocks": _image(
        "MobileNetV2Config", "MobileNetV2ForImageClassification", image_size=SIDE
    ),
    "u-net": Case(build=UNet, batch=_pairs),
    "adapters": Case(build=partial(_adapted, LLAMA.build), batch=_tokens),
}
