"""What one rank runs, and what all of them run."""

from __future__ import annotations

import ast

import pytest

from ddoctor.models import Confidence, Severity
from ddoctor.script.ranks import own_name
from tests.script.conftest import Review
from tests.script.sources import ACCELERATE, CLASSES, LOADER, SET_UP, ddp, in_functions

ALONE = "rank0-only-collective"
SAVE = "shared-filesystem-race"


@pytest.mark.parametrize(
    "branch",
    [
        "if dist.get_rank() == 0:\n    dist.barrier()",
        "if not dist.get_rank():\n    x = 1\n    dist.all_reduce(loss)",
        "if epoch > 3 and dist.get_rank() == 0:\n    dist.broadcast(loss, 0)",
        "is_first = dist.get_rank() == 0\nif is_first:\n    dist.barrier()",
        'if int(os.environ["RANK"]) == 0:\n    dist.all_gather_object(every, loss)',
        "if local_rank in (-1, 0):\n    dist.barrier()",
        "if dist.get_rank() != 0:\n    continue\ndist.barrier()",
        "evaluate(model) if dist.get_rank() == 0 else None",
        "dist.get_rank() == 0 and evaluate(model)",
    ],
)
def test_a_collective_of_one_rank(review: Review, branch: str) -> None:
    head = "def evaluate(model):\n    total = model.loss\n    dist.all_reduce(total)\n"
    found = review(ddp(head=head, epoch=branch))
    assert found.keys() == {ALONE}
    assert (found[ALONE].severity, found[ALONE].confidence) == (Severity.ERROR, Confidence.LIKELY)


def test_a_collective_of_one_rank_in_other_styles(review: Review) -> None:
    waits = ACCELERATE.replace(
        "accelerator.unwrap_model(model)", "accelerator.wait_for_everyone()\n            model"
    )
    assert review(waits).keys() == {ALONE}
    inside = CLASSES.replace("            return\n", "            return\n        self.sync()\n")
    method = "    def sync(self):\n        distributed.barrier()\n\nif __name__"
    inside = inside.replace("\nif __name__", f"\n{method}")
    finding = review(inside)[ALONE]
    assert "`self.sync()`" in finding.because
    assert "distributed.barrier()" in finding.because


def test_the_state_of_a_sharded_model(review: Review) -> None:
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
    source = ddp(head=head, epoch="if dist.get_rank() == 0:\n    state = model.state_dict()")
    assert ALONE in review(source.replace("DDP(Net()", "FSDP(Net()"))
    assert review(source) == {}
    full = "StateDictOptions(full_state_dict=True)"
    source = ddp(
        head="from torch.distributed.checkpoint.state_dict import *\n"
        "from torch.distributed.checkpoint.state_dict import get_model_state_dict",
        epoch=f"if dist.get_rank() == 0:\n    get_model_state_dict(model, options={full})",
    )
    assert ALONE in review(source)


@pytest.mark.parametrize(
    "branch",
    [
        # Both branches, or the two halves of "rank 0 first".
        "if dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    dist.barrier()",
        "if local_rank != 0:\n    dist.barrier()\nload()\nif local_rank == 0:\n    dist.barrier()",
        "if dist.get_rank() == 0:\n    dist.broadcast(a, 0)\nelif dist.get_rank() == 1:\n"
        "    dist.broadcast(b, 0)",
        # Not for one rank.
        "if dist.get_rank() == 0 or everywhere:\n    dist.barrier()",
        "if local_rank != -1:\n    dist.barrier()",
        "if not sharded and dist.get_rank() != 0:\n    continue\ndist.barrier()",
        "if dist.get_rank() % 8 == 0:\n    dist.barrier()",
        "if dist.get_rank() == 0:\n    dist.all_reduce(loss, group=mine)",
        "if dist.get_rank() == 0:\n    dist.send(loss, 1)\nelse:\n    dist.recv(loss, 0)",
        # Not a collective, or not always one.
        "if dist.get_rank() == 0:\n    loss.gather(0, index)\n    evaluate(model)",
        "if dist.get_rank() == 0:\n    print(loss)\ndist.barrier()",
    ],
)
def test_quiet_where_all_ranks_call_it_or_none(review: Review, branch: str) -> None:
    head = "def evaluate(model):\n    if model.shared:\n        dist.barrier()\n"
    assert review(ddp(head=head, epoch=branch)) == {}


GROUP = "group = dist.new_group([0, 1])"


@pytest.mark.parametrize(
    "made",
    [
        f"if dist.get_rank() in (0, 1):\n    {GROUP}",
        f"if rank == 0:\n    {GROUP}",
        f"def join():\n    if rank > 1:\n        return None\n    {GROUP}\njoin()",
    ],
)
def test_a_group_that_only_its_members_make(review: Review, made: str) -> None:
    finding = review(ddp(set_up=f"{SET_UP}rank = dist.get_rank()\n{made}"))[ALONE]
    assert finding.severity is Severity.ERROR
    assert f"(`{GROUP}`)" in finding.because
    assert "also those that are no members" in finding.because


@pytest.mark.parametrize(
    "made",
    [
        GROUP,
        f"if args.groups:\n    {GROUP}",
        f"if dist.get_world_size() > 1:\n    {GROUP}",
        f"if args.local_rank != -1:\n    {GROUP}",
        # What calls it is not known to be for some ranks.
        f"class Norm:\n    def __init__(self):\n        {GROUP}\nlayers = {{'own': Norm}}",
        # An error ends the run.
        f"if rank not in ranks:\n    raise ValueError(rank)\n{GROUP}",
        f"if args.world_size > 1 and dist.is_initialized():\n    {GROUP}",
        f"if rank < 2:\n    {GROUP}\nelse:\n    group = dist.new_group([2, 3])",
        f"if rank < 2:\n    {GROUP[:-1]}, use_local_synchronization=True)",
    ],
)
def test_quiet_where_all_ranks_make_a_group(review: Review, made: str) -> None:
    assert ALONE not in review(ddp(set_up=f"{SET_UP}rank = dist.get_rank()\n{made}"))


@pytest.mark.parametrize("style", [str, in_functions])
def test_all_ranks_write_one_file(review: Review, style: type[str]) -> None:
    found = review(style(ddp(epoch='torch.save(model.module.state_dict(), "model.pt")')))
    assert found.keys() == {SAVE}
    assert (found[SAVE].severity, found[SAVE].confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "dist" in found[SAVE].fixes[0].paste


def test_all_ranks_write_one_file_in_a_function(review: Review) -> None:
    head = """
    def save(folder, epoch, model):
        torch.save(model, os.path.join(folder, f"{epoch}.pt"))
    """
    found = review(ddp(head=head, epoch="save(folder, epoch, model)"))
    assert found[SAVE].confidence is Confidence.POSSIBLE
    assert review(ddp(head=head, epoch="if local_rank == 0:\n    save(folder, epoch, model)")) == {}


@pytest.mark.parametrize(
    "save",
    [
        'torch.save(state, f"model-{dist.get_rank()}.pt")',
        "torch.save(state, path)",
        'torch.save(state, os.path.join(rank_folder, "model.pt"))',
        'if dist.get_rank() == 0:\n    torch.save(state, "model.pt")',
        'args.logs = dist.get_rank() == 0\nif args.logs:\n    torch.save(state, "model.pt")',
        'if gpu == 0 and epoch % 2 == 0:\n    torch.save(state, "model.pt")',
        'torch.save(state, "model.pt") if is_main_process() else None',
        'if not is_main_process():\n    continue\ntorch.save(state, "model.pt")',
    ],
)
def test_quiet_where_the_file_or_the_rank_is_another(review: Review, save: str) -> None:
    assert review(ddp(epoch=save)) == {}


def test_quiet_about_one_process_and_about_frameworks(review: Review) -> None:
    save = 'torch.save(state, "model.pt")'
    assert review(f"import torch\n{save}") == {}
    assert review(ddp(head="import deepspeed", epoch=save)) == {}


def test_each_rank_logs_a_run(review: Review) -> None:
    start = 'wandb.init(project="mine")\n'
    found = review(ddp(head="import wandb", loader=f"{start}{LOADER}"))
    assert found["per-rank-metrics-or-logging"].severity is Severity.NOTE
    for quiet in (
        f"if local_rank == 0:\n    {start}",
        'wandb.init(project="mine", group="run-3")\n',
        'wandb.init(project="mine", name=f"rank-{local_rank}")\n',
    ):
        assert review(ddp(head="import wandb", loader=f"{quiet}{LOADER}")) == {}


def test_calls_of_calls_are_read_in_linear_time() -> None:
    """Each further pair of parentheses doubled the time."""
    calls = ast.parse("if rank" + "()" * 60 + " == 0: pass").body[0]
    assert isinstance(calls, ast.If)
    assert isinstance(calls.test, ast.Compare)
    assert own_name(calls.test.left) == "rank"
