from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.joining import Joining, JoiningRank
from tests.conftest import Findings
from tests.training_run import raised, run, user

CAUSE = "wrong-device-binding"


def gpus(host: str = "node-0") -> Gpus:
    return Gpus(
        host=host,
        driver="570",
        gpus=tuple(
            Gpu(index=index, uuid=f"GPU-{host}-{index}", name="H100", memory_total=1, memory_used=0)
            for index in range(4)
        ),
    )


def joining(*ranks: tuple[str, int | None, str | None]) -> Joining:
    return Joining(
        endpoint="node-0:1",
        limit=120,
        world_size=len(ranks),
        ranks=tuple(
            JoiningRank(
                rank=number,
                host=host,
                local_rank=local,
                visible_devices=visible,
                visible_gpus=4 if visible is None else visible.count(",") + 1,
                came=True,
            )
            for number, (host, local, visible) in enumerate(ranks)
        ),
    )


def test_every_rank_sees_the_same_gpu(findings: Findings) -> None:
    (found,) = findings(CAUSE, joining(("node-0", 0, "1"), ("node-0", 1, "1")), gpus())
    assert found.where.ranks == (0, 1)
    assert found.where.devices == ("cuda:1",)
    assert "ranks 0-1 on node-0 all use GPU 1 (CUDA_VISIBLE_DEVICES=1), and 3" in found.because


def test_the_launcher_gives_all_one_local_rank(findings: Findings) -> None:
    (found,) = findings(CAUSE, joining(("node-0", 0, None), ("node-0", 0, None)), gpus())
    assert "all use GPU 0, and 3 of its GPUs are idle" in found.because


def test_only_the_host_where_it_is_so(findings: Findings) -> None:
    ranks = joining(
        ("node-0", 0, None), ("node-0", 1, None), ("node-1", 0, "2"), ("node-1", 1, "GPU-node-1-2")
    )
    (found,) = findings(CAUSE, ranks, gpus(), gpus("node-1"))
    assert found.where.hosts == ("node-1",)
    assert found.where.ranks == (2, 3)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(joining(("node-0", 0, None), ("node-0", 1, None)), id="by local rank"),
        pytest.param(joining(("node-0", 0, "3"), ("node-0", 1, "2")), id="one each by Slurm"),
        pytest.param(joining(("node-0", 0, "2,3"), ("node-0", 1, "2,3")), id="a chosen pair"),
        pytest.param(joining(("node-0", 0, None), ("node-1", 0, None)), id="two hosts"),
        pytest.param(
            joining(("node-0", 4, None), ("node-0", 5, None)), id="none is there for them"
        ),
        pytest.param(joining(("node-9", 0, None), ("node-9", 0, None)), id="a host without GPUs"),
    ],
)
def test_quiet(findings: Findings, ranks: Joining) -> None:
    assert findings(CAUSE, ranks, gpus(), gpus("node-1")) == ()


ORDINAL = "CUDA error: invalid device ordinal"


@pytest.mark.parametrize(
    "line",
    [
        'torch.cuda.set_device(int(os.environ["RANK"]))',
        "device = torch.device('cuda', dist.get_rank())",
        "model.to(torch.distributed.get_rank())",
    ],
)
def test_a_rank_that_takes_its_number_for_a_gpu(findings: Findings, line: str) -> None:
    one = raised(7, "AcceleratorError", ORDINAL, stack=(user(148, line),))
    (finding,) = findings(CAUSE, run(one))
    assert finding.where.ranks == (7,)
    assert line in finding.because
    assert "LOCAL_RANK" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', ORDINAL),
        ("torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())", ORDINAL),
        ("torch.cuda.set_device(get_local_rank())", ORDINAL),
        ("", ORDINAL),
        ('torch.cuda.set_device(int(os.environ["RANK"]))', "CUDA error: out of memory"),
    ],
)
def test_quiet_about_other_lines_and_errors(findings: Findings, line: str, message: str) -> None:
    one = raised(7, "AcceleratorError", message, stack=(user(148, line),))
    assert findings(CAUSE, run(one)) == ()
