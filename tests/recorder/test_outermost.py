"""The forward pass is what the outermost module takes, by whichever door it is entered."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

TRAIN = """
    import time
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Slow(nn.Linear):
        def forward(self, x):
            time.sleep(0.02)
            return super().forward(x)

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Slow(4, 4)
    WRAP
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        CALL(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("wrap", "call"),
    [
        pytest.param("model = Slow(4, 4)", "model", id="bare"),
        pytest.param("model = DistributedDataParallel(Slow(4, 4))", "model", id="DDP"),
        pytest.param(
            "model = DistributedDataParallel(Slow(4, 4))", "model.module", id="behind DDP"
        ),
        pytest.param(
            "model = DistributedDataParallel(Slow(4, 4)); model.eval(); model.module.train()",
            "model",
            id="DDP that stays in evaluation mode",
        ),
        pytest.param("model = Holder()", "model.inner", id="never called itself"),
        pytest.param(
            "import gc; model = Slow(4, 4); gc.freeze()", "model", id="hidden from Python"
        ),
    ],
)
def test_the_time_of_the_forward_pass(record: Record, wrap: str, call: str) -> None:
    ran = record(TRAIN.replace("WRAP", wrap).replace("CALL", call))
    assert ran.exit_code == 0, ran.stderr
    # From the first step on it is known what the optimizer holds, and some later what is called.
    assert min(ran.phase("forward")[5:]) >= 0.02
    assert ran.counted("forwards")[5:] == [1] * 6
    assert ran.counted("samples")[5:] == [8] * 6


TWO = """
    import time
    import torch
    from torch import nn

    class Slow(nn.Linear):
        def forward(self, x):
            time.sleep(0.02)
            return super().forward(x)

    generator, discriminator = Slow(4, 4), Slow(4, 1)
    for_one = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    for_other = torch.optim.SGD(generator.parameters(), lr=0.01)
    for step in range(12):
        discriminator(generator(torch.randn(8, 4)).detach()).sum().backward()
        for_one.step()
        discriminator(generator(torch.randn(8, 4))).sum().backward()
        for_other.step()
"""


def test_the_models_of_all_optimizers(record: Record) -> None:
    ran = record(TWO)
    assert ran.exit_code == 0, ran.stderr
    assert min(ran.phase("forward")[4:]) >= 0.08
    assert ran.counted("forwards")[4:] == [4] * 7
    assert ran.counted("optimizer_steps")[4:] == [2] * 7
    assert len(ran.known.wrappers) == 2


COPIED = """
    import copy, io, pickle
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        x = torch.ones(8, 4)
        model(x).sum().backward()
        optimizer.step()
        best = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(best, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        assert torch.equal(again(x), model(x))
        pickle.loads(pickle.dumps(copy.deepcopy(optimizer)))
        for one in (model, best, again):
            assert not one._forward_hooks and not one._forward_pre_hooks
        if b"ddoctor" in file.getvalue():
            raise SystemExit("saved with the model")
    torch.jit.trace(model, x), torch.jit.script(model), torch.fx.symbolic_trace(model)
    print("copied")
"""


def test_models_are_copied_and_saved_as_without(record: Record) -> None:
    ran = record(COPIED)
    assert (ran.exit_code, ran.stdout) == (0, "copied\n"), ran.stderr
    assert ran.counted("forwards")[5] == 2
