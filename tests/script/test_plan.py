"""What the source says of the training that it starts."""

from __future__ import annotations

import pytest

from ddoctor.analysis import script_plan
from tests.script.conftest import Read
from tests.script.sources import SET_UP, STEP, ddp

LOADER = """
sampler = DistributedSampler(data)
loader = DataLoader(data, {}, sampler=sampler, num_workers=2)
held = DataLoader(held_out, 64)
"""


@pytest.mark.parametrize(
    ("size", "known"),
    [
        ("batch_size=16", (16, "train.py")),
        ("16", (16, "train.py")),
        ("batch_size=args.batch_size", None),
        ("**options", None),
    ],
)
def test_the_batch_of_the_loader_that_is_trained_on(
    script: Read, size: str, known: tuple[int, str] | None
) -> None:
    found = script_plan.micro_batch(script(ddp(loader=LOADER.format(size))))
    assert (found is None) == (known is None)
    if found is not None and known is not None:
        assert (found[0], found[1].partition(":")[0]) == known


def test_the_strategy_and_the_backend(script: Read) -> None:
    found = script(ddp())
    assert script_plan.strategy(found) == "DDP"
    assert script_plan.backend(found)[0] in ("nccl", "gloo")


def test_two_strategies_are_not_told(script: Read) -> None:
    both = SET_UP + "from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n"
    assert script_plan.strategy(script(ddp(set_up=both))) == ""


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("with torch.autocast('cuda', dtype=torch.bfloat16):\n    pass", "bf16 by autocast"),
        ("with torch.autocast('cuda', torch.float16):\n    pass", "fp16 by autocast"),
        ("with torch.autocast('cuda', dtype=dtype):\n    pass", ""),
        ("", ""),
    ],
)
def test_the_autocast_of_the_steps(script: Read, step: str, told: str) -> None:
    assert script_plan.autocast(script(ddp(step=f"{step}\n{STEP}"))) == told
