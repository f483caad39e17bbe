from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.gpus import KernelLog
from ddoctor.evidence.host import Kernel, Memory
from ddoctor.evidence.live import LiveLook, LiveRank
from ddoctor.evidence.plan import Plan
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Growth, MemoryOverTime
from ddoctor.evidence.training import RankStart, Starts, TrainingRun
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import in_collective, look, moving
from tests.plans import planned
from tests.training_run import echoing, ending, raised, run

CAUSE = "host-ram-oom"
GIB = 2**30
KILL = "ut of memory: Killed process 4711 ({}) total-vm:99999kB, anon-rss:8888kB"


def memory(limit: int | None, kills: int | None) -> Memory:
    return Memory(
        host="a",
        total=256 * GIB,
        available=200 * GIB,
        limit=limit,
        used_in_limit=None if limit is None else limit // 2,
        kills_in_limit=kills,
    )


def log(*names: str) -> KernelLog:
    return KernelLog(host="a", source="/dev/kmsg", oom_kills=tuple(map(KILL.format, names)))


def test_tells_of_kills_in_the_own_cgroup(findings: Findings) -> None:
    kernel = Kernel(host="a", release="6.8", container="docker")
    (finding,) = findings(CAUSE, memory(32 * GIB, 3), kernel)
    assert finding.severity is Severity.NOTE
    assert "3 processes" in finding.because
    assert "32.0 GiB" in finding.because
    assert "docker update --memory=256g" in finding.fixes[1].paste


@pytest.mark.parametrize("name", ["python", "python3.11", "pt_main_thread", "pt_data_worker"])
def test_tells_of_kills_that_were_of_a_run(findings: Findings, name: str) -> None:
    (finding,) = findings(CAUSE, log("java", name))
    assert "1 processes" in finding.because
    assert f"({name})" in finding.because
    assert finding.severity is Severity.NOTE


def test_quiet_without_kills(findings: Findings) -> None:
    assert findings(CAUSE, memory(32 * GIB, 0), log()) == ()


def test_quiet_without_a_limit(findings: Findings) -> None:
    assert findings(CAUSE, memory(None, None)) == ()


def test_quiet_where_the_counter_could_not_be_read(findings: Findings) -> None:
    assert findings(CAUSE, memory(32 * GIB, None)) == ()


@pytest.mark.parametrize("name", ["java", "chrome", "mysqld", "pythonic-daemon"])
def test_quiet_where_others_were_killed(findings: Findings, name: str) -> None:
    assert findings(CAUSE, log(name)) == ()


def grown(*gib: float) -> MemoryOverTime:
    """The memory of ranks at the last look."""
    return MemoryOverTime(
        ranks=tuple(
            Growth(rank=n, host="a", times=(0.0, 9.0), steps=(0, 40), resident=(1.0, 1024 * one))
            for n, one in enumerate(gib)
        )
    )


KILLED = run(echoing(0), ending(1, "killed", exit_code=-9, pid=4711, time=11.0))


def test_a_killed_rank_that_the_kernel_log_names(findings: Findings) -> None:
    (finding,) = findings(CAUSE, KILLED, log("java", "python"), memory(32 * GIB, 3))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert (finding.where.hosts, finding.where.ranks) == (("a",), (1,))
    assert "Killed process 4711 (java)" in finding.because
    assert "rank 0 waited in all_reduce" in finding.because


def test_a_killed_rank_in_a_cgroup_with_kills(findings: Findings) -> None:
    (finding,) = findings(CAUSE, KILLED, memory(32 * GIB, 3))
    assert finding.confidence is Confidence.LIKELY
    assert "its limit is 32.0 GiB" in finding.because


def test_a_killed_rank_where_all_memory_was_in_use(findings: Findings) -> None:
    (finding,) = findings(CAUSE, KILLED, memory(None, None), grown(100, 120))
    assert "held 220.0 of 256.0 GiB at the last sample" in finding.because


def test_a_killed_worker(findings: Findings) -> None:
    words = "DataLoader worker (pid 99) is killed by signal: Killed."
    section = run(raised(0, "RuntimeError", words), ending(1, "hung"))
    (finding,) = findings(CAUSE, section, memory(32 * GIB, 1))
    assert "a DataLoader worker of rank 0" in finding.because


def test_it_explains_the_death() -> None:
    sections = (KILLED, log("python"))
    (finding,) = engine.examine(Evidence(sections), "run").findings
    assert finding.cause == CAUSE
    assert set(finding.consequences) == {"dead-rank", "first-failure-masked"}


def test_quiet_on_a_kill_that_nothing_tells_of_memory(findings: Findings) -> None:
    others = replace(log(), oom_kills=("Killed process 12 (java)",))
    assert findings(CAUSE, KILLED, memory(64 * GIB, 0), others, grown(10, 12)) == ()


def test_quiet_on_a_kill_on_another_host(findings: Findings) -> None:
    assert findings(CAUSE, KILLED, replace(memory(32 * GIB, 0), host="b"), grown(100, 120)) == ()


def test_a_kill_that_the_kernel_log_knows_by_another_number(findings: Findings) -> None:
    section = run(ending(1, "killed", exit_code=-9, pid=12))
    (finding,) = findings(CAUSE, section, log("python"))
    assert finding.severity is Severity.NOTE


def test_quiet_on_other_deaths(findings: Findings) -> None:
    section = run(ending(1, "killed", exit_code=-11))
    assert findings(CAUSE, section, memory(64 * GIB, 0), grown(100, 120)) == ()


def test_old_kills_are_told_as_ever_beside_a_sound_run(findings: Findings) -> None:
    section = run(ending(0, "stopped"), ending(1, "stopped"))
    (finding,) = findings(CAUSE, section, memory(32 * GIB, 3))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize("section", [KILLED, run(ending(0, "stopped"), ending(1, "stopped"))])
def test_quiet_on_kills_from_before_the_recorded_run(
    findings: Findings, section: TrainingRun
) -> None:
    before = replace(memory(32 * GIB, 3), kills_before=3)
    assert findings(CAUSE, section, before) == ()
    (finding,) = findings(CAUSE, section, replace(before, kills_in_limit=4))
    assert "the kernel killed 1 process of the cgroup for memory during the run" in finding.because


def test_a_rank_of_a_live_run_that_is_gone(findings: Findings) -> None:
    waiting = in_collective(0, "all_reduce", 30)
    live = look(waiting, host="a", missing=(1,), supervised=False)
    (finding,) = findings(CAUSE, live, log("python3.11"))
    assert (finding.severity, finding.where.ranks) == (Severity.ERROR, (1,))
    assert "since the start of the run the kernel log says" in finding.because
    report = engine.examine(Evidence([live, log("python3.11")]), "attach")
    assert report.findings[0].cause == CAUSE
    assert "dead-rank" in report.findings[0].consequences


@pytest.mark.parametrize(
    ("live", "kernel_log"),
    [
        # Killed for another reason; another process was killed; on another host.
        (look(moving(0), host="a", missing=(1,), supervised=False), log()),
        (look(moving(0), host="a", missing=(1,), supervised=False), log("java")),
        (look(moving(0), host="b", missing=(1,), supervised=False), log("java")),
        # It came to its own end; nobody is missing.
        (look(moving(0), host="a", missing=(1,), supervised=True), log()),
        (look(moving(0), moving(1), host="a"), log()),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook, kernel_log: KernelLog) -> None:
    assert findings(CAUSE, live, kernel_log) == ()


def test_a_kill_during_a_live_run_in_which_nobody_is_missing_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(moving(0), moving(1), host="a"), log("pt_data_worker"))
    assert finding.severity is Severity.NOTE
    assert "since the start of the run" in finding.because


def paging(rank: int, faults: int, swapped: float) -> LiveRank:
    return replace(moving(rank), faults=faults, swapped=swapped)


def test_a_rank_that_swaps(findings: Findings) -> None:
    live = look(paging(0, 3, 0.0), paging(1, 9000, 2048.0), host="a")
    (finding,) = findings(CAUSE, live, memory(64 * GIB, 0))
    assert (finding.severity, finding.where.ranks) == (Severity.WARNING, (1,))
    assert "2.0 GiB of rank 1 are on a disk, which had to read 9000 pages" in finding.because
    assert "; a has " in finding.because


@pytest.mark.parametrize(
    ("faults", "swapped"),
    [(0, 0.0), (9000, 0.0), (20, 4096.0), (900, 2048.0), (9000, 3.0)],
    ids=["neither", "files", "never touched", "seldom", "little"],
)
def test_quiet_on_what_slows_nothing(findings: Findings, faults: int, swapped: float) -> None:
    live = look(paging(0, 0, 0.0), paging(1, faults, swapped), host="a")
    assert findings(CAUSE, live, memory(64 * GIB, 0)) == ()


def starts(*grown: int) -> Starts:
    return Starts(
        ranks=tuple(
            RankStart(rank=rank, host="a", grown=one * GIB, memory=64 * GIB)
            for rank, one in enumerate(grown)
        )
    )


EARLY = run(ending(0, "killed", exit_code=-9, steps=0), ending(1, "hung", steps=0))


def test_a_rank_killed_before_it_trained(findings: Findings) -> None:
    """A run looks at no host; what its ranks had taken is known all the same."""
    (finding,) = findings(CAUSE, EARLY, starts(40, 20))
    assert finding.confidence is Confidence.LIKELY
    assert (
        "its ranks had allocated 60.0 of the 64.0 GiB of a before the first step" in finding.because
    )


def test_quiet_on_a_rank_killed_early_with_memory_left(findings: Findings) -> None:
    assert findings(CAUSE, EARLY, starts(20, 20)) == ()


def test_what_a_rank_took_before_it_trained_is_no_reason_later(findings: Findings) -> None:
    assert findings(CAUSE, KILLED, starts(40, 20)) == ()


def keeping(gib: int, host: int, gpus: int = 8) -> Plan:
    """A plan by which each rank keeps so much in host memory."""
    plan = planned(32, (gpus,), host=host)
    return replace(plan, rows=tuple(replace(row, host=gib * GIB) for row in plan.rows))


def test_a_plan_that_keeps_more_than_the_host_has(findings: Findings) -> None:
    (finding,) = findings(CAUSE, keeping(15, 100))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert "keeps 120 GiB in the memory of each host, and the host has 93" in finding.because


def test_what_would_fit_the_gpu_alone_is_not_taken(findings: Findings) -> None:
    plan = planned(24, (1,), host=48)
    (finding,) = findings(CAUSE, plan)
    assert plan.chosen is None
    assert finding.severity is Severity.ERROR
    assert "'FSDP, kept on the CPU' keeps 49 GiB in the memory of each host" in finding.because
    assert findings(CAUSE, planned(24, (1,), host=96)) == ()


def test_a_plan_that_leaves_the_host_little(findings: Findings) -> None:
    (finding,) = findings(CAUSE, keeping(15, 140))
    assert finding.severity is Severity.WARNING


def test_each_host_has_eight_of_many_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, keeping(15, 128, gpus=32))
    assert "120 GiB in the memory of each host" in finding.because


def test_a_plan_whose_ranks_may_read_more_than_the_host_has(findings: Findings) -> None:
    (finding,) = findings(CAUSE, planned(80, (8,), trainable=82e6, host=64))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert "once for each GPU of a host, take 66 GiB, and the host has 60" in finding.because
    assert "device=" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "plan",
    [
        keeping(15, 1000),
        planned(80, (8,), trainable=82e6, host=128),
        planned(80, (8,), trainable=82e6),
        planned(8, (1,), host=1),
    ],
    ids=["enough for both", "enough", "nobody told", "nothing fits"],
)
def test_quiet_on_a_plan(findings: Findings, plan: Plan) -> None:
    assert findings(CAUSE, plan) == ()
