"""What compiled blocks keep, against blocks that torch.compile compiled on CPU tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers
from torch import Tensor, nn

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Checkpointing
from ddoctor.forecast.model import step
from ddoctor.forecast.model.outcome import Outcome
from ddoctor.forecast.model.step import Footprint
from ddoctor.forecast.request import plan
from ddoctor.memory_tracking.blocks import blocks
from tests.forecast.guide import GUIDE, cells, cells_of, guide_options, save_llama_1b
from tests.forecast.on_cpu import footprint
from tests.forecast.ways import HALF, SPREAD

WIDTH, HEADS, BLOCKS = 64, 4, 3
# As aot_eager, with inductor's decompositions and partitioner, and without its code.
BACKEND = "aot_eager_decomp_partition"
WORST = 0.03
SGD = partial(torch.optim.SGD, lr=0.1)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return made


class Attending(Mlp):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.before, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.qkv, self.drop = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (one.view(samples, tokens, HEADS, -1).transpose(1, 2) for one in parts)
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined = self.out(made.transpose(1, 2).reshape(samples, tokens, width))
        return super().forward(x + self.drop(joined))


class Deciding(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else super().forward(x)


class Net(nn.Module):
    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Outcome:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return Outcome(x.float().mean())


def llama(layers: int = BLOCKS) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


BUILDS: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": partial(Net, Mlp),
    "attention": partial(Net, Attending),
    "dropout": partial(Net, partial(Attending, 0.1)),
    "llama": llama,
}


def batch() -> dict[str, Tensor]:
    ids = torch.zeros(4, 128, dtype=torch.long)
    return {"input_ids": ids, "labels": ids.clone()}


class Spike(torch.autograd.Function):
    """A loss whose gradient takes so much memory that the peak is at its beginning."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradients[0].new_zeros(2**30)
        return gradients[0].clone()


@pytest.fixture(autouse=True)
def nothing_stays_compiled() -> Iterator[None]:
    """Other tests ask torch whether anything was compiled in their process."""
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Spiked(nn.Module):
    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.model = build()

    def forward(self, **samples: Tensor) -> Outcome:
        return Outcome(Spike.apply(self.model(**samples)[0]))  # type: ignore[no-untyped-call]


def forecast(build: Callable[[], nn.Module], **how: Any) -> Footprint:
    return footprint(partial(Spiked, build), batch, SGD, **how)


def kept(build: Callable[[], nn.Module], **how: Any) -> int:
    """Forecast bytes that the forward pass keeps."""
    return forecast(build, **how).peak.parts["Activation"]


def saved(
    build: Callable[[], nn.Module], backend: str = BACKEND, autocast: torch.dtype | None = None
) -> int:
    """Bytes that autograd really saves, without parameters, buffers and inputs."""
    model, samples = build().train(), batch()
    for block in blocks(model):
        block.compile(backend=backend)
    known = [*model.parameters(), *model.buffers(), *samples.values()]
    given = {one.untyped_storage().data_ptr() for one in known}
    found: dict[int, int] = {}

    def pack(one: Tensor) -> Tensor:
        place = one.untyped_storage().data_ptr()
        if place not in given:
            found[place] = one.untyped_storage().nbytes()
        return one

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one),
        torch.autocast("cpu", autocast, enabled=autocast is not None),
    ):
        loss = model(**samples)[0]
    assert loss.requires_grad
    return sum(found.values())


def off(name: str, **how: Any) -> float:
    return (
        kept(BUILDS[name], compiled=True, autocast=how.get("autocast")) / saved(BUILDS[name], **how)
        - 1
    )


@pytest.mark.filterwarnings("ignore")  # torch's compiler uses what torch warns of
def test_a_block_keeps_what_a_compiled_one_does() -> None:
    assert abs(off("mlp")) <= WORST


@pytest.mark.ward
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("autocast", [None, HALF], ids=["fp32", "autocast"])
@pytest.mark.parametrize("backend", [BACKEND, "inductor"])
@pytest.mark.parametrize("name", BUILDS)
def test_all_blocks_keep_what_compiled_ones_do(
    name: str, backend: str, autocast: torch.dtype | None
) -> None:
    assert abs(off(name, backend=backend, autocast=autocast)) <= WORST


def test_it_keeps_a_small_mask_of_dropout() -> None:
    """A CPU's mask has the dtype of the numbers, a compiled one a byte: 3 less of 4."""
    build = BUILDS["dropout"]
    masks = BLOCKS * batch()["input_ids"].numel() * WIDTH
    assert kept(build) - kept(build, compiled=True) == pytest.approx(3 * masks, rel=0.01)


def test_it_keeps_less_than_eager() -> None:
    build = BUILDS["llama"]
    assert kept(build, compiled=True) < 0.9 * kept(build)


@pytest.mark.parametrize("sharding", [None, SPREAD], ids=["one GPU", "fsdp"])
def test_a_checkpointed_block_keeps_its_input(sharding: Any) -> None:
    found = kept(BUILDS["attention"], compiled=True, checkpointing="every", sharding=sharding)
    inputs = BLOCKS * batch()["input_ids"].numel() * WIDTH * 4
    assert found == pytest.approx(inputs, rel=0.01)


@pytest.mark.ward
@pytest.mark.parametrize("checkpointing", ["selective", "selective:op", "selective:2"])
def test_partly_checkpointed_blocks_keep_something_between(checkpointing: Checkpointing) -> None:
    found = (
        kept(BUILDS["llama"], compiled=True, checkpointing=one)
        for one in ("every", checkpointing, "none")
    )
    least, some, most = found
    assert least < some < most


def test_fused_kernels_move_less() -> None:
    build = BUILDS["llama"]
    eager, compiled = (footprint(build, batch, SGD, compiled=one).work for one in (False, True))
    assert eager is not None
    assert compiled is not None
    assert compiled.flops == eager.flops

    def moved(phase: str, work: Any) -> int:
        operators = work.phases[phase].items()
        return sum(count * one.moved for one, count in operators if one.kind == "other")

    for phase in ("forward", "backward"):
        assert moved(phase, compiled) < 0.8 * moved(phase, eager)
    assert compiled.phases["optimizer"] == eager.phases["optimizer"]


def test_equal_blocks_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddoctor.forecast.model import compiling

    trace = Mock(side_effect=compiling._traced)
    monkeypatch.setattr(compiling, "_traced", trace)
    kept(BUILDS["mlp"], compiled=True)
    assert trace.call_count == 1


@pytest.mark.ward
def test_a_deep_model_is_forecast_from_a_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = footprint(partial(llama, 18), batch, SGD, compiled=True)
    assert found.repeats
    monkeypatch.setattr(step, "_with_fewer_blocks", lambda *_: None)
    whole = footprint(partial(llama, 18), batch, SGD, compiled=True)
    assert not whole.repeats
    assert (found.total, found.reserved) == (whole.total, whole.reserved)
    assert found.work == whole.work


def test_a_frozen_block_keeps_less() -> None:
    def frozen() -> nn.Module:
        model = BUILDS["mlp"]()
        for block in blocks(model):
            block.requires_grad_(False)
        return model

    assert 0 < kept(frozen, compiled=True) < kept(BUILDS["mlp"], compiled=True)


def test_control_flow_by_values_is_refused() -> None:
    with pytest.raises(DoctorError, match="Deciding cannot be compiled as one graph") as found:
        kept(partial(Net, Deciding), compiled=True)
    assert str(found.value).endswith("leave out --compile")
    assert "\n" not in str(found.value)


def test_a_model_without_blocks_is_refused() -> None:
    class Bare(Mlp):
        def forward(self, input_ids: Tensor, labels: Tensor) -> Outcome:  # type: ignore[override]
            return Outcome(super().forward(torch.ones(4, WIDTH)).mean())

    with pytest.raises(DoctorError, match="Spiked has no row of them"):
        kept(Bare, compiled=True)


@pytest.mark.ward
def test_the_example_of_the_guide(tmp_path: Path) -> None:
    save_llama_1b(tmp_path)
    (command,) = re.findall(r"^ddoctor plan (.* --compile .*)$", GUIDE, re.MULTILINE)
    planned = plan(guide_options(command, tmp_path))
    shown = re.findall(r"^```\n(  strategy .*?)```$", GUIDE, re.DOTALL | re.MULTILINE)
    (mine,) = (one for one in shown if "without compile" in one)
    assert cells(mine) == cells_of(planned)
