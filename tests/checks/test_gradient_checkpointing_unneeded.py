from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.host import Memory
from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.plan import MemoryParts, Plan
from ddoctor.evidence.section import Section
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.evidence.training import RankFlags, RankStart, RankUse, Starts
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import LINE, look, moving
from tests.plans import GB, planned
from tests.training_steps import COUNT, USUAL, steps

CAUSE = "gradient-checkpointing-unneeded"


def checkpointed(section: Plan, kept: int) -> Plan:
    """A plan that needs this many gigabytes without checkpointing."""
    return msgspec.structs.replace(
        section,
        checkpointing="every",
        without_checkpointing=MemoryParts(activations=kept * GB),
    )


def test_it_would_fit_without(findings: Findings) -> None:
    (finding,) = findings(CAUSE, checkpointed(planned(80, (8,)), 50))
    assert finding.severity is Severity.WARNING
    assert "needs 46.6 GiB without gradient checkpointing" in finding.because
    assert "gradient_checkpointing=False" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "section",
    [
        checkpointed(planned(80, (8,)), 70),
        checkpointed(planned(80, (8,)), 90),
        planned(80, (8,)),
        checkpointed(planned(8, (1,)), 5),
    ],
    ids=["it would be tight", "it would not fit", "it is not on", "nothing fits anyway"],
)
def test_quiet(findings: Findings, section: Plan) -> None:
    assert findings(CAUSE, section) == ()


def recorded(
    *,
    blocks: int = 12,
    between: float | None = 4.0,
    peak: float | None = 5.0,
    reserved: float | None = 5.5,
    total: float | None = 80.0,
) -> tuple[Section, ...]:
    """Two ranks on GPUs whose memory is given in GiB."""

    def mib(size: float | None) -> float | None:
        return None if size is None else 1024 * size

    found = steps(USUAL, USUAL, device="cuda")
    ranks = tuple(msgspec.structs.replace(one, forwards=(2,) * COUNT) for one in found.ranks)
    return (
        msgspec.structs.replace(found, ranks=ranks),
        RankUse(
            hosts=(),
            flags=tuple(RankFlags(rank=rank, checkpointed=2 * COUNT * blocks) for rank in range(2)),
        ),
        MemoryOverTime(
            ranks=tuple(
                Growth(
                    rank=rank,
                    host="a",
                    times=(),
                    steps=(),
                    resident=(),
                    device_between=mib(between),
                    device_peak=mib(peak),
                    device_reserved=mib(reserved),
                    device_total=mib(total),
                )
                for rank in range(2)
            )
        ),
    )


def test_no_block_has_more_than_what_a_step_adds(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *recorded())
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "12 blocks of each forward pass" in finding.because
    # 5 + 12 × 1 allocated, and a tenth of that reserved in addition.
    assert "it would be at most 18.7" in finding.because


def test_where_that_bound_is_too_much_little_use_is_worth_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *recorded(peak=16.0, reserved=18.0))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "a few steps without checkpointing" in finding.because


def test_without_the_level_between_steps_there_is_no_bound(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *recorded(between=None))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "sections",
    [
        recorded(peak=26.0, reserved=28.0),
        recorded(peak=60.0, reserved=70.0),
        recorded(blocks=0),
        recorded(between=None, peak=None, reserved=None, total=None),
        recorded(total=16.0),
    ],
    ids=["a third is in use", "all is in use", "it is not on", "no GPU", "a small GPU"],
)
def test_quiet_on_a_run(findings: Findings, sections: tuple[Section, ...]) -> None:
    assert findings(CAUSE, *sections) == ()


def on_cpus(used: float, *, blocks: int = 12, limit: float = 64.0) -> tuple[Section, ...]:
    """Two ranks on the CPUs of one host, each of which uses so many GiB."""
    found, use, memory = recorded(blocks=blocks, between=None, peak=None, reserved=None, total=None)
    assert isinstance(memory, MemoryOverTime)
    ranks = tuple(
        msgspec.structs.replace(one, times=(0.0,), steps=(0,), resident=(1024 * used,))
        for one in memory.ranks
    )
    starts = tuple(
        RankStart(rank=rank, host="a", grown=0, memory=round(limit * 2**30)) for rank in range(2)
    )
    return found, use, msgspec.structs.replace(memory, ranks=ranks), Starts(ranks=starts)


def test_little_memory_of_a_host_is_worth_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *on_cpus(2))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "the ranks of a use 4 of 64 GiB" in finding.because


def test_memory_of_a_host_for_all_activations(findings: Findings) -> None:
    (finding,) = findings(CAUSE, *on_cpus(0.4))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "it would be at most 10" in finding.because


@pytest.mark.parametrize(
    "sections",
    [on_cpus(12), on_cpus(2, blocks=0), on_cpus(2, limit=0), recorded(peak=26.0, reserved=28.0)],
    ids=["a third is in use", "it is not on", "the host is not known", "GPUs"],
)
def test_quiet_on_cpus(findings: Findings, sections: tuple[Section, ...]) -> None:
    assert findings(CAUSE, *sections) == ()


def recomputing(
    number: int, samples: int, *, steps: int = 100, resident: float = 900.0, gpu: bool = False
) -> LiveRank:
    """A rank that recomputes in so many of a hundred samples."""
    rank = moving(number)
    engine, *others = rank.activities
    optimizer = next(one for one in others if one.name == "optimizer")
    rows = (
        msgspec.structs.replace(engine, samples=engine.samples - samples),
        Activity(name="backward", samples=samples, calls=(LINE,), makes="recomputes"),
        *(one for one in others if one is not optimizer),
        msgspec.structs.replace(optimizer, visits=steps),
    )
    return msgspec.structs.replace(rank, activities=rows, resident=resident, on_gpu=gpu)


def host(total: float, limit: float | None = None) -> Memory:
    sizes = (total, limit or total)
    whole, allowed = (round(size * 2**30) for size in sizes)
    return Memory(host="node-0", total=whole, available=whole // 2, limit=allowed)


@pytest.mark.parametrize(
    ("samples", "severity"), [(25, Severity.WARNING), (14, Severity.NOTE)], ids=["25 %", "14 %"]
)
def test_a_live_run(findings: Findings, samples: int, severity: Severity) -> None:
    live = look(recomputing(0, samples), recomputing(1, samples + 1))
    (finding,) = findings(CAUSE, live, host(64))
    assert (finding.severity, finding.confidence) == (severity, Confidence.LIKELY)
    assert f"for {samples}% of the time, but the ranks of node-0 use 1.8 of 64" in finding.because
    assert "kept it would be at most" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        look(recomputing(0, 25, steps=2), recomputing(1, 25, steps=2)),
        look(recomputing(0, 25, resident=10300.0), recomputing(1, 25, resident=10300.0)),
    ],
    ids=["long steps", "nearly a third is in use"],
)
def test_a_live_run_whose_activations_may_not_fit(findings: Findings, live: LiveLook) -> None:
    (finding,) = findings(CAUSE, live, host(64))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)


@pytest.mark.parametrize(
    ("live", "memory"),
    [
        (look(recomputing(0, 8), recomputing(1, 25)), host(64)),
        (look(recomputing(0, 0), recomputing(1, 0)), host(64)),
        (look(recomputing(0, 25), recomputing(1, 25)), host(4)),
        (look(recomputing(0, 25), recomputing(1, 25)), host(64, limit=4)),
        (look(recomputing(0, 25, gpu=True), recomputing(1, 25, gpu=True)), host(64)),
        (look(recomputing(0, 25), recomputing(1, 25)), None),
    ],
    ids=["little", "it is not on", "a small host", "a container", "GPUs", "host not known"],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook, memory: Memory | None) -> None:
    assert findings(CAUSE, *([live] if memory is None else [live, memory])) == ()
