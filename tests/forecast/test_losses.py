"""What each loss of a language model keeps of its logits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.blueprint import from_config
from tests.forecast import truth
from tests.forecast.on_cpu import footprint
from tests.forecast.small_models import SMALL, tokens, written
from tests.forecast.ways import SPREAD, AdamW

WIDE = {**SMALL, "vocab_size": 4_000}
BATCH = partial(tokens, 4, 256)
LOGITS = 4 * 256 * WIDE["vocab_size"] * torch.float32.itemsize


def forecast(source: str, loss: str) -> int:
    return footprint(from_config(source, loss=loss).build, BATCH, AdamW).total


@pytest.mark.parametrize("loss", [pytest.param("fused", marks=pytest.mark.ward), "chunked:4"])
def test_a_loss_takes_what_the_forecast_says(tmp_path: Path, loss: str) -> None:
    blueprint = from_config(written(tmp_path, **WIDE), loss=loss)
    assert f"with the loss {loss}" in blueprint.name
    told = footprint(blueprint.build, BATCH, AdamW)
    real = truth.peak(blueprint.build, BATCH, AdamW)
    assert told.total == pytest.approx(real, rel=0.03)


def test_fused_keeps_no_logits_and_chunks_fewer_copies(tmp_path: Path) -> None:
    source = written(tmp_path, **WIDE)
    plain, chunked, fused = (forecast(source, loss) for loss in ("plain", "chunked:8", "fused"))
    assert plain - fused > 2 * LOGITS
    assert fused < chunked < plain


def test_compiled_keeps_the_logits_and_no_copy(tmp_path: Path) -> None:
    source = written(tmp_path, **WIDE)
    plain, compiled, fused = (forecast(source, loss) for loss in ("plain", "compiled", "fused"))
    assert plain - compiled > LOGITS
    assert fused < compiled


@pytest.mark.ward
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, within inductor
def test_torch_compile_keeps_as_much() -> None:
    logits = torch.randn(256, 4_000, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(4_000, (256,))
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    @torch.compile
    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits.float(), labels)

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(logits).backward()  # type: ignore[no-untyped-call]
    rows = 2 * 256 * torch.float32.itemsize + labels.nbytes
    assert sum(saved.values()) <= logits.nbytes + rows + 64
    assert logits.grad is not None
    assert logits.grad.dtype is torch.bfloat16


def test_sharded_weights_are_gathered_for_it(tmp_path: Path) -> None:
    blueprint = from_config(written(tmp_path, **WIDE), loss="fused")
    told = footprint(blueprint.build, BATCH, AdamW, sharding=SPREAD)
    assert told.total < forecast(written(tmp_path, **WIDE), "fused")


def test_a_model_without_logits_of_tokens_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, architectures=["LlamaForSequenceClassification"])
    with pytest.raises(DoctorError, match="--loss fused goes with causal language models"):
        from_config(source, loss="fused").build()
