from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankFlags, RankHost, RankUse
from ddoctor.evidence.wrapping import Calls, CollectiveCalls, Wrapper, Wrapping
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import in_reduction, look, moving
from tests.training_steps import COUNT, USUAL, Work, steps, with_more

CAUSE = "communication-bound-step"
MIB = 2**20


def ddp(*buckets: int) -> Wrapping:
    wrapper = Wrapper(
        rank=0,
        kind="ddp",
        name="Model",
        parameters=sum(buckets) // 4,
        parameter_bytes=sum(buckets),
        trainable_bytes=sum(buckets),
        bucket_bytes=buckets,
    )
    return Wrapping(wrappers=(wrapper,))


def queued(share: float, neighbours: float = 0.1) -> RankUse:
    host = RankHost(
        rank=0,
        host="node-0",
        local_ranks=2,
        threads=1,
        affinity=(0, 1),
        host_cpus=2,
        waited=share,
        neighbours=neighbours,
    )
    return RankUse(hosts=(host,), flags=())


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(
    ("transfer", "severity"), [(0.05, Severity.WARNING), (0.022, Severity.NOTE)]
)
def test_transfers_that_nothing_hides(
    findings: Findings, ranks: int, transfer: float, severity: Severity
) -> None:
    section = steps(*[USUAL] * ranks, transfer=transfer, noise=0.03)
    (finding,) = findings(CAUSE, section, queued(0.01))
    assert finding.severity is severity
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(transfer / (0.1 + transfer), abs=0.02)
    assert "no_sync()" in finding.fixes[-1].paste


@pytest.mark.parametrize("use", [queued(0.2), queued(0.01, neighbours=1.5)])
def test_what_gloo_moves_on_busy_cpus_is_a_note(findings: Findings, use: RankUse) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL, transfer=0.05), use)
    assert finding.severity is Severity.NOTE


TINY: Work = {"forward": 0.0004, "backward": 0.0006, "optimizer": 0.0003}


@pytest.mark.parametrize(
    ("section", "severity"),
    [
        (steps(TINY, TINY, transfer=0.0008), Severity.NOTE),
        (steps(TINY, TINY, transfer=0.0008, device="cuda"), Severity.WARNING),
        (steps(TINY, TINY, transfer=0.0008, ranks_per_host=1), Severity.WARNING),
        (steps(TINY, TINY, transfer=0.004), Severity.WARNING),
    ],
)
def test_waking_the_threads_of_one_host_is_a_note(
    findings: Findings, section: Steps, severity: Severity
) -> None:
    (finding,) = findings(CAUSE, section, queued(0.01))
    assert finding.severity is severity


def test_half_of_the_bytes_and_other_buckets(findings: Findings) -> None:
    flags = RankUse(hosts=(), flags=(RankFlags(rank=0, parameter_dtype="float32"),))
    section = steps(USUAL, USUAL, transfer=0.05)
    (finding,) = findings(CAUSE, section, ddp(*[25 * MIB] * 8), flags)
    assert "the gradients are 200 MiB" in finding.because
    compressed, buckets, _ = finding.fixes
    assert "bf16_compress_hook" in compressed.paste
    assert buckets.settings == ("ddp.bucket_cap_mb=100",)


@pytest.mark.parametrize(("cap", "first"), [(0.01, "leave DDP its own size"), (25.0, "send the")])
def test_buckets_that_the_script_makes_small(findings: Findings, cap: float, first: str) -> None:
    (one,) = ddp(*[MIB // 8] * 24).wrappers
    models = Wrapping(wrappers=(replace(one, bucket_cap_mb=cap),))
    (finding,) = findings(CAUSE, steps(USUAL, USUAL, transfer=0.05), models)
    assert finding.fixes[0].summary.startswith(first)
    sizes = [fix.settings for fix in finding.fixes if fix.settings]
    assert len(sizes) == 1


def test_one_bucket_is_split(findings: Findings) -> None:
    flags = RankUse(hosts=(), flags=(RankFlags(rank=0, parameter_dtype="bfloat16"),))
    (finding,) = findings(CAUSE, steps(USUAL, USUAL, transfer=0.05), ddp(24 * MIB), flags)
    assert finding.fixes[0].settings == ("ddp.bucket_cap_mb=6",)


def test_fewer_bytes_gain_nothing_where_there_are_few(findings: Findings) -> None:
    flags = RankUse(hosts=(), flags=(RankFlags(rank=0, parameter_dtype="float32"),))
    (finding,) = findings(CAUSE, steps(USUAL, USUAL, transfer=0.05), ddp(9 * 2**10), flags)
    larger, accumulated = finding.fixes
    assert "batch_size" in larger.paste
    assert "no_sync()" in accumulated.paste


def test_a_sharded_model(findings: Findings) -> None:
    wrapper = Wrapper(
        rank=0, kind="fsdp2", name="Model", parameters=1, parameter_bytes=4, trainable_bytes=4
    )
    section = steps(USUAL, USUAL, transfer=0.05)
    (finding,) = findings(CAUSE, section, Wrapping(wrappers=(wrapper,)))
    assert "reshard_after_forward=False" in finding.fixes[0].paste


def test_it_explains_the_low_efficiency() -> None:
    report = engine.examine(Evidence([steps(USUAL, USUAL, transfer=0.05)]), "run")
    assert [one.cause for one in report.findings] == [CAUSE]
    assert report.findings[0].consequences == ("scaling-efficiency-low",)


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL, noise=0.2),
        steps(USUAL, USUAL, transfer=0.012),
        # They wait for a late rank, which is no transfer; one rank alone; too few steps.
        steps(USUAL, with_more("forward", 0.1)),
        steps(USUAL, transfer=0.05),
        steps(USUAL, USUAL, transfer=0.05, count=9),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()


SENDING = {"backward-or-wait": 85, "forward": 10, "optimizer": 5}


def test_a_live_run_that_is_in_collectives_most_of_the_time(findings: Findings) -> None:
    live = look(*(moving(rank, SENDING, asleep=0.8) for rank in range(3)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.NOTE
    assert "all 3 ranks are in collectives for at least 80% of the time" in finding.because
    assert "on the CPUs of one host" in finding.because


def test_a_live_run_that_is_in_collectives_between_hosts(findings: Findings) -> None:
    every = [moving(rank, SENDING, asleep=0.8) for rank in range(2)]
    looks = (look(one, host=f"node-{one.rank}") for one in every)
    (finding,) = findings(CAUSE, *(msgspec.structs.replace(one, world=2) for one in looks))
    assert finding.severity is Severity.WARNING
    assert "of one host" not in finding.because


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # They compute in the backward pass; one is late; nothing moves; there is but one.
        look(moving(0, SENDING, asleep=0.1), moving(1, SENDING, asleep=0.1)),
        look(moving(0, SENDING, asleep=0.8), moving(1, {"forward": 90, "collective": 10})),
        look(in_reduction(0), in_reduction(1)),
        look(moving(0, SENDING, asleep=0.8)),
        # Whom they wait for may be on another host.
        msgspec.structs.replace(
            look(*(moving(rank, SENDING, asleep=0.8) for rank in range(3))), world=6
        ),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def objects(
    seconds: float, operation: str = "all_gather_object", *, of_user: bool = True, ranks: int = 2
) -> CollectiveCalls:
    """A call per step, which takes so long on rank 0, and longer on the others."""
    return CollectiveCalls(
        steps=COUNT,
        calls=tuple(
            Calls(
                rank=rank,
                operation=operation,
                place="train.py:11",
                of_user=of_user,
                calls=COUNT,
                bytes=0,
                seconds=COUNT * (seconds + 0.05 * rank),
            )
            for rank in range(ranks)
        ),
    )


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0.045, Severity.WARNING), (0.01, Severity.NOTE)]
)
def test_objects_that_are_exchanged_in_each_step(
    findings: Findings, seconds: float, severity: Severity
) -> None:
    section = steps(USUAL, USUAL, transfer=0.05 if seconds > 0.02 else 0.012, noise=0.03)
    (finding,) = findings(CAUSE, section, queued(0.01), objects(seconds))
    assert finding.severity is severity
    assert "all_gather_object at train.py:11" in finding.because
    assert "step % 50" in finding.fixes[0].paste
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(seconds / section.step, abs=0.02)


def test_gradients_remain_where_objects_take_a_part(findings: Findings) -> None:
    section = steps(USUAL, USUAL, transfer=0.07, noise=0.03)
    found = findings(CAUSE, section, queued(0.01), objects(0.02))
    assert len(found) == 2
    assert any("no_sync()" in fix.paste for one in found for fix in one.fixes)


@pytest.mark.parametrize(
    "calls",
    [
        objects(0.003),
        objects(0.045, "all_gather"),
        objects(0.045, of_user=False),
        objects(0.045, ranks=1),
    ],
)
def test_other_calls_are_no_objects(findings: Findings, calls: CollectiveCalls) -> None:
    section = steps(USUAL, USUAL, transfer=0.05, noise=0.03)
    (finding,) = findings(CAUSE, section, queued(0.01), calls)
    assert "object" not in finding.because
