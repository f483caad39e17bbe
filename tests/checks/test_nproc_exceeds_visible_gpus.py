from __future__ import annotations

import pytest

from ddoctor.evidence.joining import Joining, JoiningRank
from tests.conftest import Findings
from tests.logged import event, logged
from tests.training_run import raised, run, user

CAUSE = "nproc-exceeds-visible-gpus"


def joining(*ranks: tuple[str, int, str | None]) -> Joining:
    return Joining(
        endpoint="node-0:1",
        limit=120,
        world_size=len(ranks),
        ranks=tuple(
            JoiningRank(
                rank=number, host=host, visible_gpus=count, visible_devices=chosen, came=True
            )
            for number, (host, count, chosen) in enumerate(ranks)
        ),
    )


def test_more_ranks_than_gpus(findings: Findings) -> None:
    (found,) = findings(CAUSE, joining(*[("node-0", 2, "0,1")] * 4))
    assert "4 ranks run on node-0, but torch sees 2 GPUs there" in found.because
    assert "CUDA_VISIBLE_DEVICES=0,1" in found.because
    assert found.fixes[0].paste == "torchrun --nproc-per-node=2 …"


def test_only_on_the_host_that_has_fewer(findings: Findings) -> None:
    ranks = [("node-0", 2, None)] * 2 + [("node-1", 1, None)] * 2
    (found,) = findings(CAUSE, joining(*ranks))
    assert found.where.hosts == ("node-1",)
    assert found.where.ranks == (2, 3)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([("node-0", 8, None)] * 8, id="as many"),
        pytest.param([("node-0", 8, None)] * 2, id="fewer"),
        pytest.param([("node-0", 0, None)] * 4, id="on CPUs"),
        pytest.param([("node-0", 1, str(n)) for n in range(4)], id="one each by the scheduler"),
        pytest.param([(f"node-{n}", 1, None) for n in range(4)], id="one on each host"),
    ],
)
def test_quiet(findings: Findings, ranks: list[tuple[str, int, str | None]]) -> None:
    assert findings(CAUSE, joining(*ranks)) == ()


def test_a_log_of_a_rank_that_takes_its_number_for_a_gpu_has_another_cause(
    findings: Findings,
) -> None:
    log = logged(event("device-ordinal", rank=7))
    message, line = "CUDA error: invalid device ordinal", "torch.cuda.set_device(dist.get_rank())"
    assert findings(CAUSE, log)
    one = raised(7, "AcceleratorError", message, stack=(user(148, line),))
    assert findings(CAUSE, log, run(one)) == ()
    one = raised(7, "AcceleratorError", message, stack=(user(148, "set_device(local_rank)"),))
    assert findings(CAUSE, log, run(one))
