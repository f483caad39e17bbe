from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import LINE, exchanging, look, moving

CAUSE = "ddp-buffer-broadcast-unneeded"
STEPS = Steps(
    warm_up=5,
    ranks=tuple(
        RankSteps(
            place=RankPlace(rank=rank, host="a", device="cpu"),
            phases=(Phase(name="forward", seconds=(0.05,) * 20),),
        )
        for rank in range(2)
    ),
)


def wrapper(rank: int, milliseconds: float = 5.0, **options: object) -> Wrapper:
    usual: dict[str, object] = {
        "name": "ResNet",
        "kind": "ddp",
        "buffers": 159,
        "buffer_bytes": 200_000,
        "largest_buffer": "module.vectors",
        "batch_norms": 53,
        "broadcast_buffers": True,
        "buffer_broadcast_seconds": (milliseconds / 1e3,) * 20,
    }
    return Wrapper(
        rank=rank,
        parameters=200,
        parameter_bytes=800,
        trainable_bytes=800,
        **usual | options,  # type: ignore[arg-type]
    )


def both(milliseconds: float = 5.0, **options: object) -> Wrapping:
    ranks = (wrapper(rank, milliseconds, **options) for rank in range(2))
    return Wrapping(wrappers=tuple(ranks))


def test_a_notable_price_is_a_warning(findings: Findings) -> None:
    (finding,) = findings(CAUSE, both(6.0), STEPS)
    assert finding.severity is Severity.WARNING
    assert "159 buffers of ResNet" in finding.because
    assert "6.00 ms, 12.0% of the step" in finding.because
    assert finding.fixes[0].settings == ("ddp.broadcast_buffers=false",)
    assert "evaluation only" in finding.fixes[0].caution


@pytest.mark.parametrize("milliseconds", [1.5, 3.5])
def test_a_small_price_is_a_note(findings: Findings, milliseconds: float) -> None:
    (finding,) = findings(CAUSE, both(milliseconds), STEPS)
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sync_batch_norms": 53}, "already keeps its statistics equal on all ranks"),
        ({"batch_norms": 0}, "that the script changes"),
    ],
)
def test_the_caution_fits_what_the_buffers_are(
    findings: Findings, options: dict[str, object], words: str
) -> None:
    (finding,) = findings(CAUSE, both(**options), STEPS)  # type: ignore[arg-type]
    assert words in finding.fixes[0].caution


def test_quiet_where_the_others_wait_in_it_for_a_late_rank(findings: Findings) -> None:
    section = Wrapping(wrappers=(wrapper(0, 28.0), wrapper(1, 0.5)))
    assert findings(CAUSE, section, STEPS) == ()


def test_quiet_where_a_few_steps_were_slow(findings: Findings) -> None:
    section = both(buffer_broadcast_seconds=(0.04,) * 4 + (0.0004,) * 16)
    assert findings(CAUSE, section, STEPS) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"broadcast_buffers": False},
        {"broadcast_buffers": None, "kind": "fsdp1"},
        {"buffers": 0},
        {"buffer_broadcast_seconds": ()},
        {"buffer_broadcast_seconds": (0.005,) * 9},
        {"milliseconds": 0.3},
    ],
)
def test_quiet_where_it_is_off_or_cheap_or_unknown(
    findings: Findings, options: dict[str, object]
) -> None:
    assert findings(CAUSE, both(**options), STEPS) == ()  # type: ignore[arg-type]


def test_quiet_on_one_rank_alone(findings: Findings) -> None:
    assert findings(CAUSE, Wrapping(wrappers=(wrapper(0),)), STEPS) == ()


def test_the_largest_buffer_is_named(findings: Findings) -> None:
    (finding,) = findings(CAUSE, both(buffers=1, batch_norms=0), STEPS)
    assert "1 buffer of ResNet (0.19 MiB, the largest one is vectors)" in finding.because
    (finding,) = findings(CAUSE, both(), STEPS)
    assert "vectors" not in finding.because


@pytest.mark.parametrize(
    ("samples", "severity"), [(65, Severity.WARNING), (25, Severity.WARNING), (7, Severity.NOTE)]
)
def test_a_live_run(findings: Findings, samples: int, severity: Severity) -> None:
    live = look(*(exchanging(rank, samples, "_sync_buffers", LINE) for rank in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is severity
    assert "broadcast_buffers=False" in finding.fixes[0].paste


def in_turns(number: int) -> LiveRank:
    """A rank that waits there for as long as the other one loads, and then the other way round."""
    rank = exchanging(number, 40, "_sync_buffers", LINE)
    loads = Activity(name="loader", samples=30, visits=20, calls=(LINE,))
    passes = [replace(one, samples=15) for one in rank.activities[1:]]
    return replace(rank, activities=(rank.activities[0], loads, *passes))


@pytest.mark.parametrize(
    "live",
    [
        look(*(exchanging(rank, 65, "all_reduce", LINE) for rank in (0, 1))),
        look(*(exchanging(rank, 3, "_sync_buffers", LINE) for rank in (0, 1))),
        look(in_turns(0), in_turns(1)),
        look(exchanging(0, 65, "_sync_buffers", LINE), moving(1)),
        look(exchanging(0, 65, "_sync_buffers", LINE)),
    ],
    ids=["of the script", "little", "ranks that may wait in turns", "one waits", "alone"],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
