"""Which GPU a rank uses."""

from __future__ import annotations

import pytest

from ddoctor.models import Confidence, Severity
from tests.script.conftest import Review
from tests.script.sources import CLASSES, SET_UP, ddp

BINDING = "wrong-device-binding"
GPU_0 = "gpu0-extra-memory"
REST = "dist.init_process_group('nccl')\nmodel = DDP(Net().cuda())\ndata = Images()\n"


@pytest.mark.parametrize(
    "set_up",
    [
        'torch.cuda.set_device(int(os.environ["RANK"]))\n',
        'rank = int(os.environ.get("RANK", 0))\ntorch.cuda.set_device(rank)\n',
        "rank = dist.get_rank()\ntorch.cuda.set_device(f'cuda:{rank}')\n",
        "device = torch.device('cuda', dist.get_rank())\n",
    ],
)
def test_the_global_rank_selects_the_gpu(review: Review, set_up: str) -> None:
    found = review(ddp(set_up=set_up + REST))
    assert found.keys() == {BINDING}
    assert found[BINDING].severity is Severity.NOTE


def test_the_global_rank_selects_the_gpu_in_a_class(review: Review) -> None:
    selects = CLASSES.replace("set_device(self.local_rank)", "set_device(self.rank)")
    assert review(selects).keys() == {BINDING}


@pytest.mark.parametrize(
    "set_up",
    [
        "rank = dist.get_rank() % torch.cuda.device_count()\ntorch.cuda.set_device(rank)\n",
        "torch.cuda.set_device(dist.get_rank(of_host))\n",
        "torch.cuda.set_device(rank)\n",
        "rank = dist.get_rank() if alone else local\ntorch.cuda.set_device(rank)\n",
        'rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(rank)\n',
    ],
)
def test_quiet_where_the_number_may_be_of_the_host(review: Review, set_up: str) -> None:
    assert review(ddp(set_up=set_up + REST)) == {}


UNREAD = """
def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    {}
    model = DDP(Net().cuda())

main()
"""


def test_a_local_rank_that_nothing_reads_selects_no_gpu(review: Review) -> None:
    found = review(ddp(set_up=UNREAD.format("data = Images()") + "data = Images()\n"))
    assert found.keys() == {BINDING}


@pytest.mark.parametrize(
    "reads", ["torch.cuda.set_device(local_rank)", "start(local_rank)", "global local_rank"]
)
def test_quiet_where_something_may_read_the_local_rank(review: Review, reads: str) -> None:
    source = UNREAD.replace("def main():", "def main():\n    {}").replace(
        "    {}\n    model", "    model"
    )
    assert BINDING not in review(ddp(set_up=source.format(reads) + "data = Images()\n"))


def test_no_rank_selects_a_gpu(review: Review) -> None:
    found = review(ddp(set_up=REST))
    assert found.keys() == {BINDING}
    finding = found[BINDING]
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert "LOCAL_RANK" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "set_up",
    [
        SET_UP,
        REST.replace("'nccl'", "'gloo'"),
        REST.replace("'nccl'", "backend"),
        REST.replace("'nccl'", "'nccl', device_id=device"),
        REST.replace(".cuda()", ".to(dist.get_rank())"),
        REST.replace(".cuda()", ".cuda(args.gpu)"),
        f'os.environ["CUDA_VISIBLE_DEVICES"] = str(mine)\n{REST}',
    ],
)
def test_quiet_where_a_gpu_is_selected_or_none_is_used(review: Review, set_up: str) -> None:
    assert review(ddp(set_up=set_up)) == {}


COMM = """
import argparse
from dataclasses import dataclass

@dataclass
class Options:
    {}: {} = {}

options = Options()
batch_per_gpu = 8

def joined(kind):
    dist.init_process_group(backend=kind)

def device():
    return {}
"""
USES = """
kind = "nccl"
joined(kind)
place = device()
model = DDP(Net().to(place))
data = Images()
"""


@pytest.mark.parametrize(
    ("device", "joins", "alone"),
    [
        ("torch.device('cuda')", USES, True),
        ("torch.device('cuda' if torch.cuda.is_available() else 'cpu')", USES, True),
        ("torch.device(options.device)", USES, True),
        ("torch.device('cuda', number)", USES, False),
        ("torch.device(f'cuda:{number}')", USES, False),
        ("torch.device('cpu')", USES, False),
        ("torch.device('cuda')", USES.replace("nccl", "gloo"), False),
        ("torch.device('cuda')", "torch.cuda.set_device(mine())\n" + USES, False),
        ("torch.device('cuda')", USES.replace("to(place)", "cuda(number)"), False),
    ],
)
def test_a_device_of_a_helper(review: Review, device: str, joins: str, alone: bool) -> None:
    head = COMM.format("device", "str", "'cuda'", device)
    assert (BINDING in review(ddp(head=head, set_up=joins))) is alone


LOAD = "state = torch.load(path)\nmodel.load_state_dict(state['model'])\n"


def test_a_checkpoint_returns_to_gpu_0(review: Review) -> None:
    found = review(ddp(set_up=SET_UP + LOAD))
    assert found.keys() == {GPU_0}
    finding = found[GPU_0]
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert finding.fixes[0].paste == "state = torch.load(path, map_location='cpu')"


@pytest.mark.parametrize(
    "load",
    [
        LOAD.replace("(path)", "(path, map_location='cpu')"),
        LOAD.replace("(path)", "(path, device)"),
        LOAD.replace("(path)", "(path, **options)"),
        # Not a checkpoint.
        "table = torch.load(path)\n",
        # The way of one process, next to that of several.
        "if gpu is None:\n    state = torch.load(path)\n"
        "else:\n    state = torch.load(path, map_location=device)\nmodel.load_state_dict(state)\n",
        "if local_rank == 0:\n    state = torch.load(path)\n    teacher.load_state_dict(state)\n",
    ],
)
def test_quiet_where_it_goes_elsewhere(review: Review, load: str) -> None:
    assert review(ddp(set_up=SET_UP + load)) == {}


def test_quiet_about_a_checkpoint_without_gpus(review: Review) -> None:
    on_cpu = "dist.init_process_group('gloo')\nmodel = DDP(Net())\ndata = Images()\n"
    assert review(ddp(set_up=on_cpu + LOAD)) == {}


def test_data_parallel_is_noted(review: Review) -> None:
    source = "import torch\nmodel = torch.nn.DataParallel(net)\n"
    found = review(source)
    assert found["not-launched-distributed"].severity is Severity.NOTE
    assert review(ddp(head="if alone:\n    model = torch.nn.DataParallel(net)")) == {}
    guarded = source.replace("model =", "if rank == 0: model =")
    assert review(guarded) == {}


OWN = """
local_rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
model = DDP(Net().cuda(local_rank), device_ids=[local_rank])
data = Images()
dist.barrier()
"""


def test_a_barrier_uses_the_current_gpu(review: Review) -> None:
    found = review(ddp(set_up=OWN))
    assert found.keys() == {GPU_0}
    assert found[GPU_0].severity is Severity.NOTE
    assert "`dist.barrier()`" in found[GPU_0].because


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dist.init", "torch.cuda.set_device(local_rank)\ndist.init"),
        ('"nccl"', '"nccl", device_id=torch.device("cuda", local_rank)'),
        ("dist.barrier()", "dist.barrier(device_ids=[local_rank])"),
        ("dist.barrier()", ""),
    ],
)
def test_quiet_where_the_current_gpu_is_set_or_unused(review: Review, old: str, new: str) -> None:
    assert review(ddp(set_up=OWN.replace(old, new))) == {}


def test_a_barrier_of_gloo_uses_no_gpu(review: Review) -> None:
    assert review(ddp(set_up=OWN.replace('"nccl"', '"gloo"'))).keys() == {"gloo-for-gpus"}
