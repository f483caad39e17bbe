from __future__ import annotations

import ast

import pytest
import torch
import torch.distributed as dist
from msgspec.structs import replace

from ddoctor.evidence.live import LiveRank
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import HotLine, Lines, Phase, RankLines, RankSteps, Steps
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import block, exchanging, look, moving
from tests.training_run import user

CAUSE = "many-small-collectives"
COUNT = 20


def steps(seconds: float = 0.1) -> Steps:
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=rank, host="a", device="cpu"),
                phases=(Phase(name="rest", seconds=(seconds,) * COUNT),),
            )
            for rank in range(2)
        ),
    )


def line(
    rank: int,
    per_step: int,
    milliseconds: float,
    place: str = "train.py:40",
    *,
    size: int = 4096,
    of_user: bool = True,
    count: int = COUNT,
) -> Calls:
    """Calls that take this many milliseconds of each step."""
    return Calls(
        rank=rank,
        operation="all_reduce",
        place=place,
        of_user=of_user,
        calls=per_step * count,
        bytes=size * per_step * count,
        seconds=milliseconds / 1e3 * count,
    )


def called(*calls: Calls, count: int = COUNT) -> CollectiveCalls:
    return CollectiveCalls(steps=count, calls=calls)


def of_passes(forward: int, backward: int) -> CollectiveCalls:
    """Eight calls in each pass of a step, of so many bytes each."""
    return called(
        *(
            replace(line(rank, 8, 20.0, place, size=size), within=within)
            for rank in range(2)
            for place, within, size in (
                ("layers.py:36", "forward", forward),
                ("layers.py:26", "backward", backward),
            )
        )
    )


def test_sums_of_activations_are_part_of_the_model(findings: Findings) -> None:
    assert findings(CAUSE, of_passes(442_368, 442_368), steps()) == ()


def test_numbers_and_gradients_of_the_passes_count(findings: Findings) -> None:
    (finding,) = findings(CAUSE, of_passes(8, 8), steps())
    assert "16 small collectives" in finding.because
    # Hooks that reduce gradients, of other sizes than any activation.
    (finding,) = findings(CAUSE, of_passes(8, 442_368), steps())
    assert "16 small collectives" in finding.because


def at_line(*shares: float, number: int = 40) -> Lines:
    """Samples of the ranks, with such shares at a line."""
    at = user(number, "w = p.full_tensor()", file="train.py")
    return Lines(
        ranks=tuple(
            RankLines(
                rank=rank,
                samples=200,
                lines=(
                    HotLine(
                        phase="rest",
                        file=at.file,
                        line=at.line,
                        function=at.function,
                        text=at.text,
                        samples=round(200 * share),
                    ),
                ),
            )
            for rank, share in enumerate(shares)
        )
    )


@pytest.mark.parametrize(
    ("sampled", "severity", "cost"),
    [
        (at_line(0.4, 0.3), Severity.WARNING, 0.3),
        # Rank 1 waits there for rank 0, which is late.
        (at_line(0.06, 0.5), Severity.NOTE, 0.06),
        (at_line(0.4, 0.4, number=41), Severity.NOTE, 0.06),
        (None, Severity.NOTE, 0.06),
    ],
)
def test_what_the_lines_do_around_them(
    findings: Findings, sampled: Lines | None, severity: Severity, cost: float
) -> None:
    sections = (called(line(0, 60, 6.0), line(1, 60, 6.0)), steps(), *filter(None, [sampled]))
    (finding,) = findings(CAUSE, *sections)
    assert finding.severity is severity
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(cost)
    assert ("around them, 30%" in finding.because) == (cost == 0.3)


def test_gradients_one_by_one(findings: Findings) -> None:
    section = called(line(0, 60, 30.0), line(1, 60, 24.0))
    (finding,) = findings(CAUSE, section, steps())
    assert finding.severity is Severity.WARNING
    assert (
        "60 small collectives from train.py:40, of 4 KiB on average and 400 µs" in finding.because
    )
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.24)
    for fix in finding.fixes:
        ast.parse(fix.paste)


def test_the_fix_sends_the_same_in_one_go(findings: Findings) -> None:
    (finding,) = findings(CAUSE, called(line(0, 60, 30.0), line(1, 60, 24.0)), steps())
    tensors = [torch.ones(2, 3), torch.arange(4.0)]
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    try:
        exec(finding.fixes[1].paste, {"torch": torch, "tensors": tensors})
    finally:
        dist.destroy_process_group()
    assert tensors[0].equal(torch.ones(2, 3))
    assert tensors[1].equal(torch.arange(4.0))


def test_what_ddp_does_already_is_no_fix(findings: Findings) -> None:
    model = Wrapper(
        rank=0, kind="ddp", name="Net", parameters=1, parameter_bytes=4, trainable_bytes=4
    )
    section = called(line(0, 60, 30.0), line(1, 60, 24.0))
    (finding,) = findings(CAUSE, section, steps(), Wrapping(wrappers=(model,)))
    assert not [fix for fix in finding.fixes if "DistributedDataParallel" in fix.paste]


def test_barriers_are_taken_out(findings: Findings) -> None:
    rows = [replace(line(rank, 60, 30.0, size=0), operation="barrier") for rank in range(2)]
    (finding,) = findings(CAUSE, called(*rows), steps())
    assert [fix.summary for fix in finding.fixes] == ["remove the barrier at train.py:40"]


def gathers(rank: int, within: str) -> Calls:
    """A library gathers the shards of parameters for a line of the script's."""
    made = line(rank, 135, 24.0, "train.py:68", of_user=False, size=143_000)
    return replace(made, operation="all_gather_single", within=within)


def test_a_library_gathers_for_a_line_of_the_loop(findings: Findings) -> None:
    (finding,) = findings(CAUSE, called(gathers(0, "rest"), gathers(1, "rest")), steps())
    assert finding.severity is Severity.WARNING
    assert "135 small collectives from train.py:68" in finding.because
    assert any("to_local()" in fix.paste for fix in finding.fixes)


@pytest.mark.parametrize("within", ["forward", "backward", "optimizer", "checkpoint", ""])
def test_quiet_where_a_library_needs_them(findings: Findings, within: str) -> None:
    assert findings(CAUSE, called(gathers(0, within), gathers(1, within)), steps()) == ()


def test_logging_that_lightning_exchanges(findings: Findings) -> None:
    logs = user(46, 'self.log(f"norm/{name}", norm, sync_dist=True)', "on_before_optimizer_step")
    loop = block(45, 47, "for name, p in self.named_parameters():")
    live = look(*(exchanging(rank, 75, "all_reduce", logs, (loop,)) for rank in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.WARNING
    assert "without sync_dist" in finding.fixes[0].summary


def test_a_live_run_that_logs_many_values_in_one_call(findings: Findings) -> None:
    logs = user(64, 'self.log_dict({f"grad/{k}": v for k, v in norms.items()}, sync_dist=True)')
    live = look(*(exchanging(rank, 75, "barrier", logs) for rank in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.WARNING
    assert "which logs value by value" in finding.because
    assert "without sync_dist" in finding.fixes[0].summary


def test_a_live_run_that_gathers_parameters_one_by_one(findings: Findings) -> None:
    gathers = user(68, "shadow[name].lerp_(p.full_tensor(), 0.01)", "update")
    loop = block(67, 68, "for name, p in model.named_parameters():")
    live = look(*(exchanging(rank, 75, "wait_tensor", gathers, (loop,)) for rank in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.WARNING
    assert "to_local()" in finding.fixes[0].paste


def test_several_lines_count_together(findings: Findings) -> None:
    rows = [line(rank, 4, 2.0, f"train.py:{40 + n}", size=4) for rank in (0, 1) for n in range(4)]
    (finding,) = findings(CAUSE, called(*rows), steps())
    assert finding.severity is Severity.NOTE
    assert "16 small collectives from 4 lines" in finding.because
    assert len(finding.evidence) == 4


@pytest.mark.parametrize(
    "options",
    [
        # A few metrics, though slow.
        {"per_step": 4, "milliseconds": 30.0},
        # Many, and cheap.
        {"per_step": 60, "milliseconds": 3.0},
        # Large: bandwidth is paid for, not latency.
        {"per_step": 60, "milliseconds": 30.0, "size": 2**21},
        # FSDP's own.
        {"per_step": 60, "milliseconds": 30.0, "of_user": False},
    ],
)
def test_quiet_where_they_are_few_or_cheap_or_large_or_anothers(
    findings: Findings, options: dict[str, int]
) -> None:
    section = called(line(0, **options), line(1, **options))  # type: ignore[arg-type]
    assert findings(CAUSE, section, steps()) == ()


def test_quiet_where_a_rank_waits_in_them_for_a_late_one(findings: Findings) -> None:
    assert findings(CAUSE, called(line(0, 20, 40.0), line(1, 20, 1.0)), steps()) == ()


def test_quiet_where_one_rank_alone_calls_them(findings: Findings) -> None:
    section = called(line(0, 60, 30.0), line(1, 1, 0.1, "train.py:50"))
    assert findings(CAUSE, section, steps()) == ()


def test_quiet_over_a_few_steps(findings: Findings) -> None:
    rows = [line(rank, 60, 30.0, count=5) for rank in range(2)]
    assert findings(CAUSE, called(*rows, count=5), steps()) == ()


def test_quiet_without_collectives(findings: Findings) -> None:
    assert findings(CAUSE, called(), steps()) == ()


LOGGED = user(64, 'self.log_dict({"loss": loss, "grad": norm}, sync_dist=True)')
REDUCED = user(45, "dist.all_reduce(p.grad)", "train")
STEPS_LOOP = block(35, 60, "for batch in loader:")
IN_ONE_LINE = (block(44, 44, "for v in (loss.sum(), right.mean()): dist.all_reduce(v)"),)
TWO = (STEPS_LOOP, block(44, 46, "for one in (loss, right):"))
PARAMETERS = (STEPS_LOOP, block(44, 46, "for p in model.parameters():"))


@pytest.mark.parametrize(
    ("samples", "severity"), [(30, Severity.WARNING), (15, Severity.NOTE)], ids=["much", "some"]
)
def test_a_live_run_that_reduces_one_by_one(
    findings: Findings, samples: int, severity: Severity
) -> None:
    live = look(*(exchanging(rank, samples, "all_reduce", REDUCED, PARAMETERS) for rank in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is severity
    assert "train.py:45 in train (`dist.all_reduce(p.grad)`)" in finding.because
    assert "for p in model.parameters():" in finding.because
    assert "torch.cat" in finding.fixes[0].paste


def test_a_live_run_that_reduces_what_may_be_few(findings: Findings) -> None:
    line, loop = user(45, "dist.all_reduce(value)", "train"), block(44, 46, "for value in values:")
    live = look(*(exchanging(rank, 75, "all_reduce", line, (loop,)) for rank in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "ranks",
    [
        [exchanging(rank, 75, "all_reduce", REDUCED, (STEPS_LOOP,)) for rank in (0, 1)],
        [exchanging(rank, 75, "all_reduce", REDUCED) for rank in (0, 1)],
        [exchanging(rank, 75, "barrier", LOGGED) for rank in (0, 1)],
        [exchanging(rank, 75, "all_reduce", REDUCED, TWO) for rank in (0, 1)],
        [exchanging(rank, 75, "all_reduce", REDUCED, IN_ONE_LINE) for rank in (0, 1)],
        [
            replace(exchanging(rank, 75, "all_reduce", REDUCED, PARAMETERS), wakes=300)
            for rank in (0, 1)
        ],
        [exchanging(rank, 75, "recv", REDUCED, PARAMETERS) for rank in (0, 1)],
        [exchanging(rank, 75, "_sync_buffers", REDUCED, PARAMETERS) for rank in (0, 1)],
        [exchanging(rank, 6, "all_reduce", REDUCED, PARAMETERS) for rank in (0, 1)],
        [exchanging(0, 75, "all_reduce", REDUCED, PARAMETERS), moving(1)],
        [exchanging(0, 75, "all_reduce", REDUCED, PARAMETERS)],
    ],
    ids=[
        "once a step",
        "no loop",
        "a few values that are logged",
        "two",
        "two in one line",
        "large",
        "a pipeline",
        "DDP's own",
        "little",
        "one waits",
        "alone",
    ],
)
def test_quiet_on_a_live_run(findings: Findings, ranks: list[LiveRank]) -> None:
    assert findings(CAUSE, look(*ranks)) == ()
