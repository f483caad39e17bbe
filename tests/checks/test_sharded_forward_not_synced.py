from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.section import Evidence
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import LINE, block, in_collective, in_reduction, look, moving, standing
from tests.training_run import ENGINE, library, user

CAUSE = "sharded-forward-not-synced"
CALL = library("torch/nn/modules/module.py", 1884, "Module._call_impl")
GENERATE = library("transformers/generation/utils.py", 2700, "GenerationMixin.generate")
# As they were met on torch 2.13, the innermost last.
FSDP2 = (
    CALL,
    library("torch/distributed/fsdp/_fully_shard/_fsdp_state.py", 314, "FSDPState._pre_forward"),
    library("torch/utils/_contextlib.py", 124, "context_decorator.<locals>.decorate_context"),
    library("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 364, "foreach_all_gather"),
    library("torch/distributed/c10d_logger.py", 83, "_exception_logger.<locals>.wrapper"),
    library("torch/distributed/distributed_c10d.py", 4394, "all_gather_single"),
)
FSDP1 = (
    CALL,
    library("torch/distributed/fsdp/fully_sharded_data_parallel.py", 843, "forward"),
    library("torch/distributed/fsdp/_flat_param.py", 1474, "_all_gather_flat_param"),
    library("torch/distributed/distributed_c10d.py", 4287, "all_gather"),
)
BACKWARD = (
    ENGINE,
    library("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 619, "foreach_reduce"),
    library("torch/distributed/distributed_c10d.py", 4943, "reduce_scatter_single"),
)
# Inside of FSDP1's forward, and called by the user's own module; for a checkpoint.
OWN = (*FSDP1[:2], CALL, user(90, "dist.all_reduce(x)", "forward"), FSDP1[-1])
SAVING = (FSDP1[2], FSDP1[3])
TURNS = block(29, 31, "while tokens < most:")
ROUTED = block(29, 31, "if mask.any():")
STEPS = block(10, 60, "for batch in loader:")


def sharded(
    number: int, *inner: Frame, within: tuple[Block, ...] = (TURNS,), line: int = 30
) -> LiveRank:
    """A rank that waits in a collective of its model's."""
    call = user(line, "out = model(out)", "train")
    return standing(number, "collective", call, *(inner or FSDP2), within=within)


@pytest.mark.parametrize("inner", [FSDP1, FSDP2, BACKWARD])
def test_a_loop_of_forward_passes_that_one_rank_has_left(
    findings: Findings, inner: tuple[Frame, ...]
) -> None:
    within = (STEPS, TURNS)
    ranks = sharded(0, *inner, within=within), sharded(1, *inner, within=within)
    (finding,) = findings(CAUSE, look(*ranks, in_collective(2, "barrier", 40, (STEPS,))))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (2,)
    assert f"ranks 0-1 wait in {inner[-1].function} at train.py:30 in train" in finding.because
    assert "inside `while tokens < most`, where rank 2 is not; rank 2 waits in barrier" in (
        finding.because
    )
    assert "all_reduce(going" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "elsewhere",
    [
        in_reduction(1),
        # It trains on, where the passes of the two have met by chance.
        sharded(1, *BACKWARD, within=(), line=40),
        in_collective(1, "barrier", 45, (block(44, 46, "for part in range(4):"),)),
    ],
)
def test_wherever_the_other_is(findings: Findings, elsewhere: LiveRank) -> None:
    (finding,) = findings(CAUSE, look(sharded(0), elsewhere))
    assert finding.where.ranks == (1,)


def test_a_branch_that_one_rank_has_nothing_for(findings: Findings) -> None:
    elsewhere = in_collective(1, "barrier", 40, (STEPS,))
    (finding,) = findings(CAUSE, look(sharded(0, within=(STEPS, ROUTED)), elsewhere))
    assert "inside `if mask.any()`" in finding.because
    assert "weight * model(" in finding.fixes[0].paste


def test_a_loop_that_was_left_rather_than_the_branch_around_it(findings: Findings) -> None:
    now = block(27, 32, "if step == 20:")
    (finding,) = findings(
        CAUSE, look(sharded(0, within=(now, TURNS)), in_collective(1, "barrier", 40))
    )
    assert "inside `while tokens < most`" in finding.because


def test_a_loop_in_the_model_does_not_go_through_the_data(findings: Findings) -> None:
    experts = msgspec.structs.replace(block(28, 31, "for expert in experts:"), function="forward")
    inside = standing(
        0,
        "collective",
        *(user(12, "out = model(x)", "train"), CALL, user(30, "expert(x)", "forward"), *FSDP2),
        within=(experts,),
    )
    (finding,) = findings(CAUSE, look(inside, in_collective(1, "barrier", 40)))
    assert "inside `for expert in experts`" in finding.because


def test_transformers_generates(findings: Findings) -> None:
    inside = sharded(0, GENERATE, *FSDP2, within=())
    (finding,) = findings(CAUSE, look(inside, in_collective(1, "barrier", 40)))
    assert "synced_gpus=True" in finding.fixes[0].paste


def test_it_explains_the_general_ones() -> None:
    live = look(sharded(0), in_collective(1, "barrier", 40))
    (finding,) = engine.examine(Evidence([live]), "attach").findings
    assert finding.cause == CAUSE
    assert set(finding.consequences) == {"uneven-inputs-per-rank", "rank-dependent-control-flow"}


RANK_0 = block(20, 50, "if rank == 0:")
SKIPS = block(39, 41, "if skip:")


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # All of them generate, or stand at one line in the same loop.
        look(sharded(0), sharded(1)),
        look(sharded(0, within=()), in_collective(1, "barrier", 40)),
        look(sharded(0, GENERATE, *FSDP2, within=()), sharded(1, GENERATE, *FSDP2, within=())),
        # For one rank only; a branch with a collective of the script's own.
        look(sharded(0, within=(RANK_0, TURNS)), in_collective(1, "barrier", 60)),
        look(sharded(0), in_collective(1, "barrier", 40, (RANK_0,))),
        look(sharded(0), in_collective(1, "all_reduce", 40, (SKIPS,))),
        # Short of data.
        look(sharded(0, within=(STEPS,)), in_collective(1, "barrier", 70)),
        look(
            sharded(0, within=(block(10, 60, "for i in range(len(loader)):"),)),
            in_collective(1, "barrier", 70),
        ),
        # No forward pass of a sharded model.
        look(in_collective(0, "all_gather", 30, (TURNS,)), in_collective(1, "barrier", 40)),
        look(sharded(0, *OWN), in_collective(1, "barrier", 40)),
        look(sharded(0, *SAVING), in_collective(1, "barrier", 40)),
        # The other waits for nobody; it is stopped; the look was too short.
        look(sharded(0), standing(1, "rest", user(60))),
        look(sharded(0), standing(1, "collective", LINE, state="stopped")),
        look(sharded(0), in_collective(1, "barrier", 40), seconds=2.0),
    ],
)
def test_quiet(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
