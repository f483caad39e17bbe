from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceAlone, SourceOutside, SourceUnfrozen
from ddoctor.evidence.source_lines import SourceCall, SourceLine, Within
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import (
    BufferSum,
    Calls,
    CollectiveCalls,
    ParameterSum,
    Wrapper,
    Wrapping,
)
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.source_calls import WRAPS
from tests.training_run import ending, raised, run

CAUSE = "replicas-diverged"
SUMS = (120.5, -31.25)


def wrapper(rank: int, *sums: float, **options: Any) -> Wrapper:
    usual: dict[str, Any] = {"kind": "ddp", "name": "Net", "trainable_bytes": 4000}
    return Wrapper(
        rank=rank,
        parameters=1000,
        parameter_bytes=4000,
        checksum=sums,
        checksum_scale=(1000.0, 1000.0)[: len(sums)],
        **usual | options,
    )


def wrapping(*sums: tuple[float, ...], **options: Any) -> Wrapping:
    return Wrapping(wrappers=tuple(wrapper(n, *one, **options) for n, one in enumerate(sums)))


def stopped(ranks: int) -> TrainingRun:
    return run(*(ending(rank, "stopped") for rank in range(ranks)))


def parted(by: float) -> tuple[float, float]:
    return SUMS[0], SUMS[1] + by


def steps(synced: int) -> Steps:
    ranks = (
        RankSteps(
            place=RankPlace(rank=rank, host="a", device="cpu"),
            phases=(Phase(name="forward", seconds=(0.1,) * 10),),
            synced_backwards=(synced,) * 10,
        )
        for rank in range(2)
    )
    return Steps(ranks=tuple(ranks), warm_up=5)


def test_several_models_for_one_reason_are_one_finding(findings: Findings) -> None:
    two = [
        wrapper(rank, *parted(0.2 * rank), name=name)
        for rank in range(2)
        for name in ("Encoder", "Decoder")
    ]
    (finding,) = findings(CAUSE, Wrapping(wrappers=tuple(two)), stopped(2))
    assert "the parameters of Encoder differ" in finding.because


def test_one_rank_of_four(findings: Findings) -> None:
    section = wrapping(SUMS, SUMS, parted(0.2), SUMS)
    (finding,) = findings(CAUSE, section, stopped(4))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.where.ranks == (2,)
    assert (
        "of Net of rank 2 differ from those of the other 3 ranks, by up to 0.0002"
        in finding.because
    )


def test_two_ranks_have_no_majority(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(SUMS, parted(0.01)), stopped(2), steps(1))
    assert finding.where.ranks == ()
    assert "differ between all ranks" in finding.because
    assert "the script changes them outside DDP" in finding.because


def test_one_of_two_models_is_called_past_its_wrapper(findings: Findings) -> None:
    apart = wrapping(SUMS, parted(5.0))
    past = replace(apart, wrappers=tuple(replace(one, bypassed=True) for one in apart.wrappers))
    (finding,) = findings(CAUSE, past, stopped(2), steps(1))
    assert finding.confidence is Confidence.CERTAIN
    assert "calls the model inside DDP, and not DDP" in finding.because


def test_a_model_that_is_called_past_its_wrapper(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(SUMS, parted(5.0)), stopped(2), steps(0))
    assert "calls the model inside DDP, and not DDP" in finding.because
    assert "not model.module(x)" in finding.fixes[0].paste


def test_the_line_that_calls_it_so(findings: Findings) -> None:
    inner = wrapping(SUMS, parted(5.0), kind="none")
    line = SourceLine(file="train.py", line=79, text="z = model.module(x)")
    (finding,) = findings(
        CAUSE, inner, stopped(2), Script(files=("train.py",), past_wrapper=(line,))
    )
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert "train.py:79 (`z = model.module(x)`) runs the model inside DDP" in finding.because
    (finding,) = findings(CAUSE, inner, stopped(2), Script(files=("train.py",)))
    assert finding.severity is Severity.WARNING


def test_one_that_is_not_a_number(findings: Findings) -> None:
    section = wrapping(SUMS, SUMS, (float("nan"), 0.0))
    (finding,) = findings(CAUSE, section, stopped(3))
    assert finding.where.ranks == (2,)


def test_without_a_wrapper_it_may_be_meant(findings: Findings) -> None:
    (finding,) = findings(CAUSE, wrapping(SUMS, parted(5.0), kind="none"), stopped(2))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.fixes[0].paste == "model = DistributedDataParallel(model)"


def test_without_a_wrapper_from_the_source(findings: Findings) -> None:
    joins = SourceLine(file="train.py", line=6, text="dist.init_process_group()")
    loop = SourceLine(file="train.py", line=16, text="for x, y in loader:")
    script = Script(files=("train.py",), trains_alone=SourceAlone(at=loop, joins=joins))
    (finding,) = findings(CAUSE, script)
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "its own model at train.py:16 (`for x, y in loader:`)" in finding.because
    # What the run showed is better: equal weights here, or the finding above.
    assert findings(CAUSE, script, wrapping(SUMS, SUMS, kind="none")) == ()


def test_parameters_outside_of_ddp_from_the_source(findings: Findings) -> None:
    made = SourceLine(file="train.py", line=11, text="criterion = ProxyLoss()")
    optimizer = SourceLine(file="train.py", line=12, text="opt = Adam(groups)")
    one = SourceOutside(at=made, name="criterion", optimizer=optimizer)
    (finding,) = findings(CAUSE, Script(files=("train.py",), outside_wrapper=(one,)))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "has the parameters of criterion, which train.py:11" in finding.because
    assert finding.fixes[0].paste.startswith("criterion = DistributedDataParallel(criterion)")


AVERAGES = CollectiveCalls(
    steps=10,
    calls=tuple(
        Calls(
            rank=rank,
            operation="all_reduce",
            place="train.py:40",
            of_user=True,
            calls=20,
            bytes=40_000,
            seconds=0.1,
        )
        for rank in range(2)
    ),
)


def test_gradients_that_are_averaged_by_hand(findings: Findings) -> None:
    section = wrapping(SUMS, parted(5.0), kind="none")
    (finding,) = findings(CAUSE, section, stopped(2), AVERAGES)
    assert finding.severity is Severity.ERROR
    assert "averages gradients itself" in finding.because


@pytest.mark.parametrize(
    ("in_steps", "size", "told"),
    [
        (2, 4000, 0),  # the parameters, every fifth step
        (2, 400, 1),  # a metric, every fifth step
        (10, 400, 1),  # some of the gradients, in each step
    ],
)
def test_quiet_where_the_whole_model_is_averaged_from_time_to_time(
    findings: Findings, in_steps: int, size: int, told: int
) -> None:
    one = replace(
        calling("all_reduce", "rest").calls[0], in_steps=in_steps, calls=10, bytes=in_steps * size
    )
    calls = CollectiveCalls(steps=10, calls=(one, replace(one, rank=1)))
    section = wrapping(SUMS, parted(5.0), kind="none")
    assert len(findings(CAUSE, section, stopped(2), calls)) == told


def calling(operation: str, within: str) -> CollectiveCalls:
    call = Calls(
        rank=0,
        operation=operation,
        place="train.py:40",
        of_user=True,
        within=within,
        calls=20,
        bytes=40,
        seconds=0.1,
    )
    return CollectiveCalls(steps=10, calls=(call, replace(call, rank=1)))


@pytest.mark.parametrize(
    ("operation", "within"), [("irecv", "rest"), ("send", "rest"), ("all_reduce", "forward")]
)
def test_quiet_where_ranks_compute_parts_of_a_model(
    findings: Findings, operation: str, within: str
) -> None:
    section = wrapping(SUMS, parted(5.0), kind="none")
    assert findings(CAUSE, section, stopped(2), calling(operation, within)) == ()


@pytest.mark.parametrize(
    ("within", "options"),
    [("rest", {}), ("evaluation", {}), ("forward", {"sync_batch_norms": 1})],
)
def test_collectives_elsewhere_are_no_sign_of_parts(
    findings: Findings, within: str, options: dict[str, int]
) -> None:
    section = wrapping(SUMS, parted(5.0), kind="none", **options)
    (finding,) = findings(CAUSE, section, stopped(2), calling("all_reduce", within))
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize("by", [0.0, 1e-5, -1e-4])
def test_quiet_where_only_rounding_differs(findings: Findings, by: float) -> None:
    assert findings(CAUSE, wrapping(SUMS, parted(by), SUMS), stopped(3)) == ()


def test_quiet_where_ranks_hold_parts_of_a_model(findings: Findings) -> None:
    section = wrapping(SUMS, parted(9.0), SUMS, parted(9.0))
    assert findings(CAUSE, section, stopped(4)) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "fsdp2"},
        {"comm_hook": "post_localSGD_hook"},
        {"checksum": (), "checksum_scale": ()},
    ],
)
def test_quiet_where_they_need_not_be_equal(findings: Findings, options: dict[str, Any]) -> None:
    rows = [wrapper(0, *SUMS), wrapper(1, *parted(9.0))]
    section = Wrapping(wrappers=tuple(replace(row, **options) for row in rows))
    assert findings(CAUSE, section, stopped(2)) == ()


def test_quiet_on_different_models(findings: Findings) -> None:
    first, second = wrapper(0, *SUMS, name="Stage0"), wrapper(1, *parted(9.0), name="Stage1")
    assert findings(CAUSE, Wrapping(wrappers=(first, second)), stopped(2)) == ()


def test_quiet_where_the_ranks_ended_at_different_steps(findings: Findings) -> None:
    section = wrapping(SUMS, parted(9.0))
    apart = run(ending(0, "interrupted", steps=40), ending(1, "interrupted", steps=41))
    assert findings(CAUSE, section, apart) == ()
    assert findings(CAUSE, section, run(ending(0, "hung"), raised(1, "ValueError", "x"))) == ()


def test_quiet_on_one_rank_alone(findings: Findings) -> None:
    assert findings(CAUSE, wrapping(SUMS), stopped(1)) == ()


EQUAL, OWN = (4.0, 4.0), (4.0, 4.5)
MOVED, STAYED = (3.0, 3.0), (4.0, 4.0)


def by_parameter(**parameters: tuple[tuple[float, float], tuple[float, float]]) -> Wrapping:
    """A model of two ranks: of each parameter what both begin with, and what they end with."""
    return Wrapping(
        wrappers=tuple(
            wrapper(
                rank,
                *parted(0.3 * rank),
                kind="none",
                parameter_sums=tuple(
                    ParameterSum(name=name, first=first[rank], last=last[rank], magnitude=9.0)
                    for name, (first, last) in parameters.items()
                ),
            )
            for rank in range(2)
        )
    )


REST = {"tokens": (EQUAL, MOVED), "head": (EQUAL, MOVED), "norm": (EQUAL, MOVED)}
PARTS = calling("all_to_all_single", "forward")


@pytest.mark.parametrize(
    ("expert", "severity", "confidence"),
    [
        ((OWN, OWN), Severity.WARNING, Confidence.LIKELY),
        # Experts of each rank may begin equal as well.
        ((EQUAL, MOVED), Severity.NOTE, Confidence.POSSIBLE),
    ],
)
def test_a_gate_beside_experts_of_each_rank(
    findings: Findings, expert: Any, severity: Severity, confidence: Confidence
) -> None:
    model = by_parameter(gate=(EQUAL, OWN), expert=expert, **REST)
    (finding,) = findings(CAUSE, model, stopped(2), PARTS)
    assert (finding.severity, finding.confidence) == (severity, confidence)
    assert finding.because.startswith("of Net, gate began equal on all ranks and differs now")


@pytest.mark.parametrize(
    "model",
    [
        by_parameter(expert=(OWN, OWN), **REST),
        by_parameter(expert=(EQUAL, OWN), gate=(EQUAL, OWN), tokens=(EQUAL, MOVED)),
        # Nothing that is trained stays equal.
        by_parameter(gate=(EQUAL, OWN), tokens=(EQUAL, STAYED), head=(EQUAL, STAYED)),
        by_parameter(),
    ],
)
def test_quiet_about_parts_of_a_model(findings: Findings, model: Wrapping) -> None:
    assert findings(CAUSE, model, stopped(2), PARTS) == ()


def test_what_is_left_out_of_an_average_by_hand(findings: Findings) -> None:
    model = by_parameter(gate=(EQUAL, OWN), **REST)
    (finding,) = findings(CAUSE, model, stopped(2), AVERAGES)
    assert "averages gradients itself, but not those of gate" in finding.because


def test_what_is_averaged_by_hand_may_be_the_smaller_part(findings: Findings) -> None:
    model = by_parameter(gate=(EQUAL, OWN), body=(EQUAL, OWN), head=(EQUAL, MOVED))
    (finding,) = findings(CAUSE, model, stopped(2), calling("all_reduce", "rest"))
    assert finding.severity is Severity.ERROR
    assert "averages gradients itself, but not those of gate, body" in finding.because
    # A loss that is summed averages nothing.
    model = by_parameter(gate=(EQUAL, OWN), body=(EQUAL, OWN), head=(EQUAL, OWN))
    (finding,) = findings(CAUSE, model, stopped(2), calling("all_reduce", "rest"))
    assert "no wrapper or collective averages the gradients" in finding.because


def test_parameters_that_train_after_the_steps_of_the_run(findings: Findings) -> None:
    thaws = SourceLine(file="train.py", line=40, text="self.thaw()")
    wraps = SourceLine(file="train.py", line=20, text="model = DDP(net)")
    script = Script(files=("train.py",), unfrozen=(SourceUnfrozen(at=thaws, wrapper=wraps),))
    (finding,) = findings(CAUSE, script, wrapping(SUMS, SUMS), stopped(2))
    assert "train.py:40 (`self.thaw()`) lets parameters train" in finding.because
    layers = Script(files=("train.py",), added_layers=(thaws,))
    (finding,) = findings(CAUSE, layers, wrapping(SUMS, SUMS), stopped(2))
    assert "gives the model inside DDP a layer that it had not" in finding.because
    # A run to its end shows whether they differ.
    ended = run(ending(0, "finished"), ending(1, "finished"))
    assert findings(CAUSE, script, wrapping(SUMS, SUMS), ended) == ()


def with_buffers(*sums: float, elements: int = 100, **options: Any) -> Wrapping:
    usual = {"broadcast_buffers": False}
    return Wrapping(
        wrappers=tuple(
            wrapper(
                rank,
                *SUMS,
                buffer_sums=(
                    BufferSum(name="module.scale", elements=4, sum=4.0, magnitude=4.0),
                    BufferSum(
                        name="module.book.codes",
                        elements=elements + rank * (elements != 100),
                        sum=one,
                        magnitude=40.0,
                    ),
                ),
                **usual | options,
            )
            for rank, one in enumerate(sums)
        )
    )


def test_a_codebook_of_each_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, with_buffers(1.5, 2.5), stopped(2))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert (
        "buffers of Net differ between ranks: book.codes; with broadcast_buffers=False"
        in finding.because
    )


@pytest.mark.parametrize(
    "section",
    [
        with_buffers(1.5, 1.5),
        # DDP sends those of rank 0 before each pass.
        with_buffers(1.5, 2.5, broadcast_buffers=True),
        # They grow with the batches, as a cache does.
        with_buffers(1.5, 2.5, elements=200),
        with_buffers(1.5, 2.5, kind="none"),
    ],
)
def test_quiet_about_buffers(findings: Findings, section: Wrapping) -> None:
    assert findings(CAUSE, section, stopped(2)) == ()


def step(*within: Within, made_by: str = "torch.optim.SGD", unless: str = "") -> SourceCall:
    at = SourceLine(file="train.py", line=30, text="optimizer.step()")
    return SourceCall(
        name=".step", at=at, made_by=(made_by,), within=("training", *within), unless=unless
    )


def stepping(*calls: SourceCall) -> Script:
    return Script(files=("train.py",), calls=calls)


BROADCAST = SourceCall(
    name="torch.distributed.broadcast",
    at=SourceLine(file="train.py", line=31, text="dist.broadcast(p.data, 0)"),
)


def test_a_step_of_one_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, stepping(step("one-rank")))
    assert "train.py:30 (`optimizer.step()`) is for one rank alone" in finding.because


def test_a_rate_of_one_rank(findings: Findings) -> None:
    schedule = step("one-rank", made_by="torch.optim.lr_scheduler.StepLR")
    (finding,) = findings(CAUSE, stepping(schedule))
    assert "the others keep the learning rate" in finding.because


@pytest.mark.parametrize(
    "script",
    [
        stepping(step()),
        stepping(step("one-rank"), BROADCAST),
        stepping(step("one-rank", made_by="torch.profiler.profile")),
        stepping(step("one-rank", "condition")),
    ],
)
def test_quiet_about_other_steps(findings: Findings, script: Script) -> None:
    assert findings(CAUSE, script) == ()


BACK = SourceLine(file="train.py", line=37, text="loss.backward()")


def test_passes_that_never_exchange_gradients(findings: Findings) -> None:
    (finding,) = findings(CAUSE, Script(files=("train.py",), calls=(WRAPS,), never_synced=BACK))
    assert "as train.py:37 (`loss.backward()`)" in finding.because
    assert findings(CAUSE, Script(files=("train.py",), calls=(WRAPS,))) == ()
