from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddoctor.recorder.script import with_names


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(2, 2).requires_grad_(False)
        self.body = torch.nn.Linear(2, 1)
        self.aux = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self.frozen(x))
        return result


@pytest.fixture
def group() -> Iterator[None]:
    store = torch._C._distributed_c10d.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def fail(model: DistributedDataParallel) -> str:
    """What DDP says of parameters that got no gradient."""
    model(torch.ones(2, 2)).sum().backward()
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(2, 2))
    return str(caught.value)


@pytest.mark.usefixtures("group")
def test_the_numbers_get_their_names() -> None:
    model = DistributedDataParallel(Net())
    message = fail(model)
    assert "aux" not in message
    line = "Parameters which did not receive grad for rank 0: aux.weight, aux.bias\n"
    assert line in with_names(message)
    assert with_names(message).replace(line, "") == message
    assert with_names(with_names(message)) == with_names(message)
    del model


@pytest.mark.usefixtures("group")
def test_of_several_models_it_is_not_known_which() -> None:
    model, other = DistributedDataParallel(Net()), DistributedDataParallel(Net())
    message = fail(model)
    assert with_names(message) == message
    del other


def test_other_messages_stay_as_they_are() -> None:
    assert with_names("CUDA out of memory") == "CUDA out of memory"
