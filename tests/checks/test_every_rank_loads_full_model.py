from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import RankStart, Starts, TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.plans import planned
from tests.training_run import ending, run

CAUSE = "every-rank-loads-full-model"
GIB = 2**30
LINE = "model = AutoModel.from_pretrained(path)"


def test_eight_models_are_too_much_for_a_host(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(32, (8,), host=64))
    assert finding.severity is Severity.WARNING
    # Eight times 8.8 GB.
    assert "8 ranks of a host that each load the whole model need 66 GiB" in finding.because
    assert "fsdp_cpu_ram_efficient_loading: true" in finding.fixes[0].paste


def test_of_many_hosts_each_has_eight(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(32, (32,), host=64))
    assert "8 ranks of a host" in finding.because


@pytest.mark.parametrize(
    "section",
    [
        planned(32, (8,), host=512),
        planned(32, (8,)),
        planned(80, (8,), trainable=82e6, host=64),
        planned(8, (1,), host=64),
    ],
    ids=["enough", "nobody told", "each GPU has all of it anyway", "nothing fits"],
)
def test_quiet(findings: Findings, section: Plan) -> None:
    assert findings(CAUSE, section) == ()


def test_in_a_plan_it_explains_that_the_host_runs_out() -> None:
    (finding,) = engine.examine(Evidence([planned(32, (8,), host=64)]), "plan").findings
    assert finding.cause == CAUSE
    assert finding.consequences == ("host-ram-oom",)


def starts(
    *grown: float, memory: int = 64, text: str = LINE, inner: str = "", fsdp: bool = True
) -> Starts:
    """GiB by which each rank of a host grew."""
    return Starts(
        ranks=tuple(
            RankStart(
                rank=rank,
                host="a",
                grown=round(one * GIB),
                memory=memory * GIB,
                fsdp=fsdp,
                place="train.py:9",
                text=text,
                inner=inner,
            )
            for rank, one in enumerate(grown)
        )
    )


def wrapped(kind: str, gib: float, ranks: int = 4) -> Wrapping:
    """GiB of the model, as each rank reports it."""
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind=kind,  # type: ignore[arg-type]
                name="Net",
                parameters=1,
                parameter_bytes=round(gib * GIB),
                trainable_bytes=0,
            )
            for rank in range(ranks)
        )
    )


@pytest.mark.parametrize("wrapping", [wrapped("fsdp2", 14), wrapped("fsdp1", 14 / 4)])
def test_a_run_that_got_through_it(findings: Findings, wrapping: Wrapping) -> None:
    (finding,) = findings(CAUSE, starts(15, 15, 16, 15), wrapping)
    assert finding.severity is Severity.WARNING
    assert "each of 4 ranks of a loaded the whole model of 14 GiB" in finding.because
    assert "together 56 GiB, and the host has 64" in finding.because


@pytest.mark.parametrize(
    ("section", "wrapping"),
    [
        (starts(15, 15, 16, 15, memory=512), wrapped("fsdp2", 14)),
        (starts(15, 15, 16, 15), wrapped("ddp", 14)),
        (starts(15, 1, 1, 1), wrapped("fsdp2", 14)),
        (starts(4, 4, 4, 4), wrapped("fsdp2", 14)),
        (starts(60), wrapped("fsdp2", 58, ranks=1)),
    ],
    ids=["a large host", "DDP", "rank 0 alone loads", "none has all of it", "one rank"],
)
def test_quiet_on_a_run(findings: Findings, section: Starts, wrapping: Wrapping) -> None:
    assert findings(CAUSE, section, wrapping) == ()


def killed(*, steps: int = 0, exit_code: int = -9) -> TrainingRun:
    return run(
        ending(0, "killed", exit_code=exit_code, steps=steps),
        *(ending(rank, "hung", steps=steps) for rank in (1, 2, 3)),
    )


@pytest.mark.parametrize(
    "section",
    [
        starts(15, 14, 14, 15),
        starts(15, 14, 14, 15, text="net = Net(c)", inner="modules/linear.py:reset_parameters"),
        starts(15, 14, 14, 15, text="net = read()", inner="torch/serialization.py:load_tensor"),
    ],
    ids=["from_pretrained", "made anew", "read by torch"],
)
def test_a_run_that_did_not(section: Starts) -> None:
    (finding,) = engine.examine(Evidence([killed(), section]), "run").findings
    assert finding.cause == CAUSE
    assert finding.severity is Severity.ERROR
    assert "rank 0 (pid 100 on a) was killed by SIGKILL before its first step" in finding.because
    assert "at train.py:9: together they had taken 58 GiB, and the host has 64" in finding.because
    assert "host-ram-oom" in finding.consequences


@pytest.mark.parametrize(
    ("ended", "section"),
    [
        (killed(steps=40), starts(15, 14, 14, 15)),
        (killed(exit_code=-11), starts(15, 14, 14, 15)),
        (killed(), starts(15, 14, 14, 15, memory=256)),
        (killed(), starts(15, 14, 14, 15, fsdp=False)),
        (killed(), starts(56, 1, 1, 1)),
        (killed(), starts(15, 14, 14, 15, text="rows = json.load(file)")),
    ],
    ids=["trained", "another signal", "memory was left", "no FSDP", "rank 0 alone", "other data"],
)
def test_quiet_on_a_death(findings: Findings, ended: TrainingRun, section: Starts) -> None:
    assert findings(CAUSE, ended, section) == ()
