from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.cluster_probes import End, Flow, LocalWork, Pairs
from ddoctor.evidence.host import Cpus
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.evidence.wrapping import Calls, CollectiveCalls
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import TRAINING, in_collective, look, moving
from tests.training_steps import COUNT, USUAL, every, lines, steps, with_more

CAUSE = "straggler-rank"
SOUND = (0.22, 0.2, 0.21, 0.2, 0.2)


def place(rank: int, ranks_per_host: int = 1) -> RankPlace:
    return RankPlace(rank=rank, host=f"node-{rank // ranks_per_host}", device="cpu")


def pairs(*seconds: Sequence[float], cpu: float = 0.99, ranks_per_host: int = 1) -> Pairs:
    """Ranks that needed so long."""
    work = tuple(
        LocalWork(
            place=place(rank, ranks_per_host),
            seconds=tuple(row),
            cpu=(cpu,) * len(row),
            queued=(1 - cpu,) * len(row),
        )
        for rank, row in enumerate(seconds)
    )
    ends = tuple(End(place=row.place) for row in work)
    return Pairs(backend="gloo", ends=ends, flows=(), work=work)


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * second for second in SOUND)


def test_a_rank_that_is_slow_every_time(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(SOUND, SOUND, times(2.0), SOUND, cpu=0.5))
    assert finding.where.hosts == ("node-2",)
    assert finding.where.ranks == (2,)
    assert finding.confidence is Confidence.CERTAIN
    assert "on a CPU for 50%" in finding.because
    assert "ps -eo" in finding.fixes[0].paste


def test_the_quota_and_the_mask_of_its_host_are_told(findings: Findings) -> None:
    cpus = Cpus(
        host="node-1", logical=8, allowed=(0, 1), quota=0.5, quota_file="/sys/fs/cgroup/a/cpu.max"
    )
    (finding,) = findings(CAUSE, pairs(SOUND, times(2.0), SOUND, cpu=0.5), cpus)
    assert {row.name: row.value for row in finding.evidence if row.name.startswith("CPU")} == {
        "CPU quota": 0.5,
        "CPUs allowed": "0-1",
    }
    assert "cat /sys/fs/cgroup/a/cpu.max /sys/fs/cgroup/a/cpu.stat" in finding.fixes[0].paste


def test_a_slower_processor(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(SOUND, SOUND, SOUND, times(1.5)))
    assert "the CPU itself is slower" in finding.because
    assert "governor" in finding.fixes[0].summary


def test_the_ranks_of_a_host_are_one_finding(findings: Findings) -> None:
    slow = times(1.8)
    (finding,) = findings(CAUSE, pairs(SOUND, SOUND, slow, slow, SOUND, SOUND, ranks_per_host=2))
    assert finding.where.hosts == ("node-1",)
    assert finding.where.ranks == (2, 3)


def test_two_slow_hosts_of_four(findings: Findings) -> None:
    found = findings(CAUSE, pairs(SOUND, times(2.0), SOUND, times(3.0)))
    assert [finding.where.hosts for finding in found] == [("node-1",), ("node-3",)]


def test_of_two_ranks_it_is_likely_only(findings: Findings) -> None:
    (finding,) = findings(CAUSE, pairs(SOUND, times(2.0)))
    assert finding.where.ranks == (1,)
    assert finding.confidence is Confidence.LIKELY


def test_it_explains_the_slow_link_of_its_host() -> None:
    section = pairs(SOUND, SOUND, times(3.0), SOUND, cpu=0.3)
    flows = tuple(
        Flow(sender=a, receiver=b, bytes=1, rates=((0.1 if 2 in (a, b) else 1.0),) * 7)
        for a in range(4)
        for b in range(4)
        if a != b
    )
    section = Pairs(backend="gloo", ends=section.ends, flows=flows, work=section.work)
    (finding,) = engine.examine(Evidence([section]), "probe").findings
    assert finding.cause == CAUSE
    assert finding.consequences == ("slow-network-link",)


@pytest.mark.parametrize(
    "last",
    [
        SOUND,
        times(1.2),
        # A neighbour came, and went again.
        (0.6, 0.6, 0.6, 0.6, 0.2),
        (0.2, 0.6, 0.6, 0.6, 0.6),
        # Seen too seldom.
        (0.6, 0.6),
    ],
)
def test_quiet_where_it_is_not_slow_every_time(findings: Findings, last: tuple[float, ...]) -> None:
    assert findings(CAUSE, pairs(SOUND, SOUND, SOUND, last)) == ()


def test_quiet_where_all_are_as_noisy(findings: Findings) -> None:
    loaded = (0.2, 0.5, 0.45, 0.3, 0.5)
    assert findings(CAUSE, pairs(loaded, loaded, loaded, (0.3, 0.5, 0.45, 0.4, 0.5))) == ()


def test_quiet_where_the_whole_machine_is_slow(findings: Findings) -> None:
    assert findings(CAUSE, pairs(*[times(5.0)] * 4)) == ()


def test_quiet_with_one_rank(findings: Findings) -> None:
    assert findings(CAUSE, pairs(times(5.0))) == ()


FORWARD = ("forward", 20, "loss = model(batch)")
BACKWARD = ("backward", 21, "loss.backward()")


def host(rank: int, affinity: Sequence[int] = range(8), waited: float = 0.0) -> RankHost:
    return RankHost(
        rank=rank,
        host="node-0",
        local_ranks=2,
        threads=1,
        affinity=tuple(affinity),
        host_cpus=8,
        waited=waited,
    )


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_delay_inside_the_backward_pass_of_one_rank(findings: Findings, ranks: int) -> None:
    section = steps(*[USUAL] * (ranks - 1), with_more("backward", 0.06), noise=0.05)
    (finding,) = findings(CAUSE, section)
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (ranks - 1,)
    assert "in backward" in finding.because
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.36, abs=0.05)


def test_a_quiet_dose_in_the_forward_pass_of_one_of_two(findings: Findings) -> None:
    section = steps(with_more("forward", 0.016), USUAL, noise=0.05, cpu=(0.11, 0.095))
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (0,)
    assert "on a CPU for that time" in finding.because


def test_a_core_that_is_not_slower_all_the_time_is_a_note(findings: Findings) -> None:
    mostly = [0.03 if step % 7 else -0.01 for step in range(COUNT)]
    (finding,) = findings(CAUSE, steps(USUAL, with_more("forward", mostly), cpu=(0.09, 0.12)))
    assert finding.severity is Severity.NOTE
    assert finding.where.ranks == (1,)


def test_a_core_that_is_slower_by_little_may_be_so_for_a_while(findings: Findings) -> None:
    everywhere = with_more("forward", 0.006, with_more("backward", 0.012))
    (finding,) = findings(CAUSE, steps(USUAL, everywhere, noise=0.02, cpu=(0.095, 0.113)))
    assert finding.severity is Severity.NOTE
    assert "its core is slower" in finding.because
    assert "lscpu" in finding.fixes[0].paste


def test_a_core_that_is_slower_by_much(findings: Findings) -> None:
    everywhere = with_more("forward", 0.030, with_more("backward", 0.060))
    (finding,) = findings(CAUSE, steps(USUAL, everywhere, noise=0.02, cpu=(0.095, 0.185)))
    assert finding.severity is Severity.WARNING
    assert "its core is slower" in finding.because


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_more_work_in_one_part_of_the_step(findings: Findings, phase: str) -> None:
    section = steps(USUAL, with_more(phase, 0.018), cpu=(0.095, 0.113))
    (finding,) = findings(CAUSE, section)
    assert finding.severity is Severity.WARNING
    assert "it computes more" in finding.because
    assert "grep -qx RANK=1 && py-spy record" in finding.fixes[0].paste


def test_the_line_that_it_alone_is_met_at(findings: Findings) -> None:
    section = steps(USUAL, with_more("forward", 0.06), cpu=(0.09, 0.09))
    met = lines(
        {FORWARD: 30, BACKWARD: 90},
        {FORWARD: 20, BACKWARD: 60, ("forward", 31, "time.sleep(0.06)"): 40},
    )
    (finding,) = findings(CAUSE, section, met)
    assert "train.py:31, `time.sleep(0.06)`" in finding.because
    assert finding.fixes[0].paste.startswith("train.py:31: time.sleep(0.06)")


def test_work_outside_of_the_model_on_another_rank_than_the_first(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, with_more("rest", 0.06)))
    assert finding.where.ranks == (1,)
    assert "outside the model" in finding.because


def test_fewer_cpus_than_the_others(findings: Findings) -> None:
    section = steps(USUAL, with_more("forward", 0.06), cpu=(0.09, 0.15))
    use = RankUse(hosts=(host(0), host(1, affinity=(3,))), flags=())
    (finding,) = findings(CAUSE, section, use)
    assert "may use only CPU 3, while the others have 8" in finding.because
    assert finding.fixes[0].settings == ("torch.affinity=all",)


def test_another_process_on_its_core(findings: Findings) -> None:
    section = steps(USUAL, with_more("forward", 0.06), cpu=(0.09, 0.09))
    (finding,) = findings(CAUSE, section, RankUse(hosts=(host(0), host(1, waited=0.36)), flags=()))
    assert finding.severity is Severity.WARNING
    assert "run queue for 36%" in finding.because
    assert "ps -eo" in finding.fixes[0].paste


def test_something_that_it_waits_for_beside_the_collectives(findings: Findings) -> None:
    section = steps(USUAL, with_more("forward", 0.06), cpu=(0.09, 0.09))
    (finding,) = findings(CAUSE, section, RankUse(hosts=(host(0), host(1)), flags=()))
    assert "needed no CPU" in finding.because
    assert r"tr '\0' '\n'" in finding.fixes[0].paste
    assert "grep -qx RANK=1 && py-spy dump" in finding.fixes[0].paste


@pytest.mark.parametrize(("times", "severity"), [(2, Severity.WARNING), (10, Severity.NOTE)])
def test_what_it_seldom_waits_for_may_pass(
    findings: Findings, times: int, severity: Severity
) -> None:
    section = steps(USUAL, with_more("rest", every(times, 0.2)), cpu=(0.09, 0.09))
    (finding,) = findings(CAUSE, section, RankUse(hosts=(host(0), host(1)), flags=()))
    assert "needed no CPU" in finding.because
    assert finding.severity is severity


@pytest.mark.parametrize(("operation", "told"), [("isend", True), ("all_reduce", False)])
def test_a_stage_of_a_pipeline(findings: Findings, operation: str, told: bool) -> None:
    section = steps(USUAL, with_more("backward", 0.06), cpu=(0.09, 0.15))
    call = Calls(
        rank=1,
        operation=operation,
        place="stages.py:9",
        of_user=False,
        calls=60,
        bytes=6000,
        seconds=1,
    )
    (finding,) = findings(CAUSE, section, CollectiveCalls(steps=COUNT, calls=(call,)))
    assert ("balance the pipeline" in finding.fixes[0].summary) is told


def test_what_a_stage_does_beside_the_model_is_no_matter_of_balance(findings: Findings) -> None:
    call = Calls(
        rank=1,
        operation="isend",
        place="stages.py:9",
        of_user=False,
        calls=60,
        bytes=6000,
        seconds=1,
    )
    calls = CollectiveCalls(steps=COUNT, calls=(call,))
    (finding,) = findings(CAUSE, steps(USUAL, with_more("rest", 0.06)), calls)
    assert "balance" not in finding.fixes[0].summary


def test_a_gpu(findings: Findings) -> None:
    section = steps(*[USUAL] * 7, with_more("forward", 0.06), device="cuda")
    (finding,) = findings(CAUSE, section)
    assert finding.where.devices == ("cuda:7",)
    assert finding.confidence is Confidence.CERTAIN
    assert finding.fixes[0].paste.startswith("nvidia-smi -i 7")


@pytest.mark.parametrize(
    ("dose", "cpu"),
    [
        # Too little to matter, yet surely there; enough, but by what may be gone tomorrow.
        (0.006, (0.095, 0.101)),
        (0.020, (0.095, 0.095)),
    ],
)
def test_a_note_of_what_is_little_or_may_pass(
    findings: Findings, dose: float, cpu: tuple[float, float]
) -> None:
    section = steps(USUAL, with_more("forward", dose), noise=0.01, cpu=cpu)
    (finding,) = findings(CAUSE, section, RankUse(hosts=(host(0), host(1, waited=0.2)), flags=()))
    assert finding.severity is Severity.NOTE
    assert finding.where.ranks == (1,)


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL, noise=0.2, cpu=(0.09, 0.09)),
        steps(USUAL, with_more("forward", 0.003), cpu=(0.095, 0.098)),
        # Causes of their own.
        steps(USUAL, with_more("loader", 0.06)),
        steps(with_more("rest", 0.06), USUAL),
        steps(with_more("checkpoint", every(10, 1.0)), with_more("checkpoint", 0.0)),
        steps(
            with_more("forward", 0.03),
            with_more("forward", 0.06),
            elements=[[1000] * COUNT, [1500] * COUNT],
        ),
        # Nobody waits.
        steps(USUAL, with_more("forward", 0.06), together=False),
        steps(with_more("forward", 0.06)),
    ],
)
def test_quiet_in_training(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()


def test_what_sleeps_beside_a_later_rank_is_a_note(findings: Findings) -> None:
    section = steps(with_more("rest", 0.06), with_more("forward", 0.03), cpu=(0.15, 0.09))
    use = RankUse(hosts=(host(0), host(1)), flags=())
    (finding,) = findings(CAUSE, section, use)
    assert finding.where.ranks == (1,)
    assert "needed no CPU" in finding.because
    assert finding.severity is Severity.NOTE


WAITING = {"forward": 20, "backward-or-wait": 65, "optimizer": 10, "rest": 5}
LATE_IN_FORWARD = {"forward": 70, "backward-or-wait": 20, "optimizer": 8, "rest": 2}


@pytest.mark.parametrize("others", [1, 3])
def test_a_live_rank_that_the_others_wait_for(findings: Findings, others: int) -> None:
    waiting = [moving(number, WAITING, asleep=0.6) for number in range(others)]
    (finding,) = findings(CAUSE, look(*waiting, moving(others, LATE_IN_FORWARD, asleep=0.05)))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (others,)
    assert "is in forward" in finding.because
    assert "of the time" in finding.because


@pytest.mark.parametrize(
    ("taken", "on_gpu", "severity"),
    [
        (0.9, False, Severity.NOTE),
        (0.1, False, Severity.WARNING),
        (0.9, True, Severity.WARNING),
    ],
)
def test_a_live_rank_beside_other_processes(
    findings: Findings, taken: float, on_gpu: bool, severity: Severity
) -> None:
    """At lines that all ranks run, a rank on a CPU may only have less of it."""
    late = replace(moving(1, LATE_IN_FORWARD, asleep=0.05), on_gpu=on_gpu)
    live = look(moving(0, WAITING, asleep=0.6), late)
    hosts = (replace(host(one), host=live.host, neighbours=taken) for one in (0, 1))
    (finding,) = findings(CAUSE, live, RankUse(host=live.host, hosts=tuple(hosts), flags=()))
    assert finding.severity is severity
    assert ("other processes used" in finding.because) == (severity is Severity.NOTE)


def test_what_a_live_rank_does_once_is_a_note(findings: Findings) -> None:
    evaluating = moving(1, {"forward": 80, "rest": 20}, visits=1)
    (finding,) = findings(CAUSE, look(moving(0, WAITING, asleep=0.7), evaluating))
    assert finding.severity is Severity.NOTE
    assert "attach again" in finding.because


def test_a_live_rank_whose_step_is_longer_than_the_look(findings: Findings) -> None:
    slow = moving(1, {"forward": 100}, asleep=0.0, visits=1)
    (finding,) = findings(CAUSE, look(in_collective(0, "all_gather_single", 30), slow))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (1,)


def test_a_live_rank_that_starts_later_is_a_note(findings: Findings) -> None:
    starting = moving(1, {"import": 100}, asleep=0.0, visits=1)
    (finding,) = findings(CAUSE, look(in_collective(0, "barrier", 30), starting))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(moving(0, WAITING, asleep=0.6), moving(1, WAITING, asleep=0.6)),
        # It is the loader's, or a checkpoint's; too few samples; one rank alone.
        look(
            moving(0, WAITING, asleep=0.6),
            moving(1, {"loader-wait": 70, "forward": 20, "backward-or-wait": 10}),
        ),
        look(moving(0, WAITING, asleep=0.6), moving(1, {"checkpoint": 80, "forward": 20})),
        look(moving(0, {"backward-or-wait": 9}, asleep=0.9), moving(1, {"forward": 9})),
        look(moving(0, TRAINING)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
