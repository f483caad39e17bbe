from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Block
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import block, in_collective, in_reduction, look, moving, standing
from tests.training_run import ENGINE, ending, library, run, user

CAUSE = "rank0-only-collective"


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 0:",
        "if dist.get_rank() == 0 and step % 100 == 0:",
        "if accelerator.is_main_process:",
        "if accelerator.is_local_main_process:",
        "if self.args.local_rank in (-1, 0):",
        "if trainer.is_world_process_zero():",
        "if self.trainer.is_global_zero:",
        "if is_master:",
    ],
)
def test_a_collective_that_only_rank_0_comes_to(findings: Findings, text: str) -> None:
    inside = in_collective(0, "all_gather", 50, (block(49, 51, text),))
    (finding,) = findings(CAUSE, look(inside, in_reduction(1), in_reduction(2)))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (0,)
    assert f"rank 0 waits in all_gather at train.py:50 in train, inside `{text}`" in (
        finding.because
    )
    assert "which ranks 1-2 do not run; ranks 1-2 wait in backward at train.py:40" in (
        finding.because
    )


RANK_0 = block(49, 51, "if rank == 0:")


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # To send is for one rank.
        look(
            in_collective(0, "send", 50, (block(49, 51, "if rank == 0:"),)),
            in_collective(1, "recv", 53),
        ),
        # A condition that is no rank's; a loop over ranks; all are in it; one is elsewhere.
        look(
            in_collective(0, "barrier", 50, (block(49, 51, "if step % 100 == 0:"),)),
            in_reduction(1),
        ),
        look(
            in_collective(0, "barrier", 50, (block(49, 51, "for rank in range(world):"),)),
            in_reduction(1),
        ),
        look(in_collective(0, "barrier", 50, (RANK_0,)), in_reduction(1, (RANK_0,))),
        look(in_collective(0, "barrier", 50, (RANK_0,)), standing(1, "rest", user(60))),
        look(in_collective(0, "barrier", 50), in_collective(1, "all_reduce", 60)),
        look(in_collective(0, "barrier", 50, (RANK_0,)), in_reduction(1), seconds=2.0),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


FSDP = library(
    "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 364, "foreach_all_gather"
)
PASS = library("torch/nn/modules/module.py", 1884, "Module._call_impl")
GATHER = library("torch/distributed/distributed_c10d.py", 4394, "all_gather_single")
SCATTER = library("torch/distributed/distributed_c10d.py", 4943, "reduce_scatter_single")
OTHER = ending(
    1, "hung", doing="reduce_scatter_single", doing_seconds=31.0, stack=(user(40), ENGINE, SCATTER)
)


def evaluating(*within: Block) -> RankEnding:
    stack = (user(50), PASS, FSDP, GATHER)
    return ending(
        0, "hung", doing="all_gather_single", doing_seconds=30.0, stack=stack, within=within
    )


def test_rank_0_alone_evaluates_a_sharded_model_in_a_recorded_run() -> None:
    report = engine.examine(Evidence([run(evaluating(RANK_0), OTHER)]), "run")
    (finding,) = report.findings
    assert (finding.cause, finding.where.ranks) == (CAUSE, (0,))
    assert (
        "rank 0 waits in all_gather_single at train.py:50 in main, inside `if rank == 0:` "
        "(line 49), which rank 1 does not run; rank 1 waits in reduce_scatter_single"
    ) in finding.because
    assert "each pass gathers the parts of all" in finding.fixes[0].paste
    assert "full_state_dict=True" in finding.fixes[1].paste


def test_a_barrier_needs_no_whole_weights(findings: Findings) -> None:
    inside = msgspec.structs.replace(evaluating(RANK_0), doing="barrier", stack=(user(50), GATHER))
    (finding,) = findings(CAUSE, run(inside, OTHER))
    assert not any("full_state_dict" in fix.paste for fix in finding.fixes)


@pytest.mark.parametrize(
    "ended",
    [
        # All are in it, none is, or the test is no rank's.
        run(evaluating(RANK_0), msgspec.structs.replace(evaluating(RANK_0), rank=1)),
        run(evaluating(), OTHER),
        run(evaluating(block(49, 51, "if step % 100 == 0:")), OTHER),
        # The others come to it later, have failed, or stopped as asked.
        run(evaluating(RANK_0), ending(1, "hung", doing="forward", stack=(user(60),))),
        run(evaluating(RANK_0), ending(1, "killed", exit_code=-9)),
        run(ending(0, "stopped", within=(RANK_0,)), ending(1, "stopped")),
    ],
)
def test_quiet_on_a_recorded_run(findings: Findings, ended: TrainingRun) -> None:
    assert findings(CAUSE, ended) == ()
