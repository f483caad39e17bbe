from __future__ import annotations

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.flight_records import FlightRecords
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.probes import ProbeRun, ProbeRuns, RankState
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankEnding
from ddoctor.models import Confidence, Finding, Severity
from tests.conftest import Findings
from tests.flight_records import call, recorded, records, unseen
from tests.live_look import in_collective, in_reduction, look, moving, on_gpu, standing
from tests.training_run import ENGINE, LATE, echoing, ending, library, raised, run, user

CAUSE = "rank-stuck-outside-collective"


def state(rank: int, status: str = "sleeping", steps: int = 50) -> RankState:
    last = f"all-reduce of 1024 bytes, round {steps}"
    return RankState(
        rank=rank, host="a", last=last, age=14.0, steps=steps, pid=100 + rank, status=status
    )


def runs(*states: RankState, outcome: str = "hung") -> ProbeRuns:
    run = ProbeRun(probe="allreduce", outcome=outcome, ranks=states)  # type: ignore[arg-type]
    return ProbeRuns(host="a", runs=(run,), backend="gloo", world_size=len(states))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("stopped", "stopped by a signal"),
        ("tracing-stop", "debugger"),
        ("disk-sleep", "asleep in the kernel"),
        ("silent", "no longer responding"),
    ],
)
def test_names_the_rank_that_something_holds(findings: Findings, status: str, words: str) -> None:
    (finding,) = findings(CAUSE, runs(state(0), state(1, status), state(2)))
    assert finding.severity is Severity.ERROR
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (1,)
    assert "pid 101" in finding.because
    assert "all-reduce of 1024 bytes" in finding.because
    assert words in finding.because


def test_names_the_rank_that_is_behind(findings: Findings) -> None:
    (finding,) = findings(CAUSE, runs(state(0, steps=52), state(1, steps=51), state(2, steps=52)))
    assert finding.where.ranks == (1,)
    assert finding.confidence is Confidence.LIKELY
    assert "51 steps and the others up to 52" in finding.because


def test_the_held_one_is_named_and_not_who_waits_behind(findings: Findings) -> None:
    (finding,) = findings(CAUSE, runs(state(0, steps=51), state(1, "stopped", steps=52)))
    assert finding.where.ranks == (1,)


def test_quiet_when_all_wait_at_the_same_place(findings: Findings) -> None:
    assert findings(CAUSE, runs(state(0), state(1))) == ()


def test_quiet_when_nothing_hung(findings: Findings) -> None:
    assert findings(CAUSE, runs(outcome="completed")) == ()
    assert findings(CAUSE, runs(outcome="skipped")) == ()


def test_quiet_on_a_crash_and_on_an_interruption(findings: Findings) -> None:
    for outcome in ("crashed", "interrupted"):
        assert findings(CAUSE, runs(state(0), state(1, steps=3), outcome=outcome)) == ()


def test_quiet_when_no_rank_had_started(findings: Findings) -> None:
    assert findings(CAUSE, runs()) == ()


def test_quiet_on_one_rank_alone(findings: Findings) -> None:
    assert findings(CAUSE, runs(state(0, "disk-sleep"))) == ()


def hung(rank: int, doing: str, *stack: Frame) -> RankEnding:
    return ending(rank, "hung", doing=doing, doing_seconds=90.0, stack=stack)


WAITING = hung(0, "DDP's gradient reduction", user(40, "loss.backward()"), ENGINE)
ASLEEP = hung(1, "rest", user(20), user(55, "time.sleep(3600)", "download", "/home/u/data.py"))


def test_the_line_that_a_rank_of_a_run_stands_at(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(WAITING, ASLEEP))
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert finding.where.ranks == (1,)
    assert (
        "rank 1 (pid 101 on a) was stuck at data.py:55 in download (`time.sleep(3600)`) for 90 s, "
        "outside any collective; rank 0 waited in DDP's gradient reduction at train.py:40"
    ) in finding.because
    assert finding.fixes[0].paste.endswith("time.sleep(3600)")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (library("../bdb.py", 115, "dispatch_line"), "at a debugger prompt"),
        (library("../subprocess.py", 1264, "wait"), "until a child process ends"),
        (library("../ssl.py", 1166, "read"), "for the network"),
        (library("filelock/_api.py", 20, "acquire"), "for a file lock"),
    ],
)
def test_what_it_waits_for(findings: Findings, frame: Frame, words: str) -> None:
    (finding,) = findings(CAUSE, run(WAITING, hung(1, "forward", user(30), frame)))
    assert f"{words}; rank 0 waited" in finding.because


def test_a_rank_in_its_own_backward_while_the_others_wait(findings: Findings) -> None:
    stuck = hung(1, "backward", user(40), ENGINE, user(12, function="backward"))
    (finding,) = findings(CAUSE, run(hung(0, "backward", user(40), ENGINE), stuck))
    assert finding.where.ranks == (1,)
    assert "train.py:12 in backward" in finding.because


def test_a_rank_that_others_gave_up_waiting_for() -> None:
    section = run(echoing(0, LATE), hung(1, "forward", user(30)))
    (finding,) = engine.examine(Evidence([section]), "run").findings
    assert finding.cause == CAUSE
    assert finding.consequences == ("first-failure-masked",)


def test_all_ranks_stand_at_the_same_line(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(hung(0, "rest", user(8)), hung(1, "rest", user(8))))
    assert finding.where.ranks == (0, 1)
    assert finding.confidence is Confidence.LIKELY


def test_without_a_stack_it_says_how_to_get_one(findings: Findings) -> None:
    (finding,) = findings(CAUSE, run(WAITING, hung(1, "checkpoint")))
    assert "was stuck in the phase checkpoint" in finding.because
    assert "py-spy dump" in finding.fixes[0].paste


def test_quiet_where_all_ranks_of_a_run_wait(findings: Findings) -> None:
    gathering = hung(1, "evaluation", user(60), library("torch/distributed/x.py", 9, "gather"))
    assert findings(CAUSE, run(WAITING, gathering)) == ()
    assert findings(CAUSE, run(WAITING, hung(1, "waiting"))) == ()


def test_quiet_where_a_loader_worker_is_waited_for(findings: Findings) -> None:
    taking = library("torch/utils/data/dataloader.py", 1284, "_try_get_data")
    stuck = hung(1, "loader", user(20), taking, library("../queues.py", 113, "get"))
    assert findings(CAUSE, run(WAITING, stuck)) == ()


def test_a_loader_without_workers_is_the_scripts_own_code(findings: Findings) -> None:
    inside = library("torch/utils/data/_utils/fetch.py", 54, "fetch")
    stuck = hung(1, "loader", user(20), inside, user(9, "open(fifo)", "__getitem__"))
    (finding,) = findings(CAUSE, run(WAITING, stuck))
    assert "train.py:9 in __getitem__" in finding.because


def test_quiet_where_a_rank_of_the_run_failed(findings: Findings) -> None:
    assert findings(CAUSE, run(ASLEEP, raised(0, "ValueError", "x"))) == ()


@pytest.mark.parametrize("outcome", ["stopped", "finished", "interrupted"])
def test_quiet_on_a_run_that_did_not_hang(findings: Findings, outcome: str) -> None:
    assert findings(CAUSE, run(ending(0, outcome), ending(1, outcome, doing="loader"))) == ()


def test_quiet_where_nothing_is_known_of_a_hung_rank(findings: Findings) -> None:
    assert findings(CAUSE, run(WAITING, ending(1, "hung"))) == ()


def test_a_rank_that_stood_until_somebody_interrupted_the_run(findings: Findings) -> None:
    stood = {"doing_seconds": 60.0, "busy": False}
    waited = ending(0, "interrupted", doing="barrier", stack=(user(9), ENGINE), **stood)
    reading = ending(1, "interrupted", doing="rest", stack=(user(30, "read()"),), **stood)
    (finding,) = findings(CAUSE, run(waited, reading))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.where.ranks == (1,)
    assert "was stuck at train.py:30 in main (`read()`) for 60 s" in finding.because
    for other in (
        msgspec.structs.replace(waited, busy=None),
        msgspec.structs.replace(waited, outcome="killed"),
    ):
        assert findings(CAUSE, run(other, reading)) == ()
    assert findings(CAUSE, run(waited, msgspec.structs.replace(reading, busy=True))) == ()


GETS = (
    user(56, "return self.items.get()", "next"),
    library("../queue.py", 171, "get"),
    library("../threading.py", 327, "wait"),
)


@pytest.mark.parametrize(
    ("rank", "sections", "ended"), [(1, 1, False), (0, 1, True), (2, 1, True), (0, 0, False)]
)
def test_a_queue_whose_thread_has_ended(
    findings: Findings, rank: int, sections: int, ended: bool
) -> None:
    alive = ScriptThread(rank=rank, place=user(70, "items.put(one)", "fill"), cpus=0.0, seconds=9.0)
    threads = [ScriptThreads(host="node-0", threads=(alive,))] * sections
    live = look(in_reduction(0), standing(1, "rest", *GETS))
    (finding,) = findings(CAUSE, live, *threads)
    assert "waiting for a queue that another thread fills" in finding.because
    assert ("what filled it has ended" in finding.because) is ended


KEY = user(45, 'store.wait(["ready"])', "train")


def test_a_key_that_no_rank_sets(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(standing(0, "rest", KEY), standing(1, "rest", KEY)))
    assert finding.where.ranks == (0, 1)
    assert "waiting for a key of the store that no rank has set" in finding.because
    (finding,) = findings(CAUSE, look(in_reduction(0), standing(1, "rest", KEY)))
    assert finding.where.ranks == (1,)
    assert "no rank has set; rank 0 waits in backward" in finding.because


def test_quiet_where_only_some_of_all_that_stand_want_a_key(findings: Findings) -> None:
    elsewhere = standing(1, "rest", user(50, "read()", "train"))
    assert findings(CAUSE, look(standing(0, "rest", KEY), elsewhere)) == ()
    assert findings(CAUSE, look(elsewhere, standing(0, "rest", user(50, "read()", "train")))) == ()


def test_a_live_rank_that_stands_where_the_others_are_not(findings: Findings) -> None:
    asleep = standing(1, "rest", user(30, "wait_for_file(path)", "load"))
    (finding,) = findings(CAUSE, look(in_reduction(0), asleep, in_reduction(2)))
    assert finding.severity is Severity.ERROR
    assert finding.where.ranks == (1,)
    assert "train.py:30 in load (`wait_for_file(path)`)" in finding.because
    assert "ranks 0, 2 wait in backward at train.py:40 in train" in finding.because


SYNCHRONIZE = library("torch/cuda/__init__.py", 1200, "synchronize")


def test_a_live_rank_for_which_the_gpus_of_the_others_wait(findings: Findings) -> None:
    """Their hosts are in no collective, and yet they wait for it."""
    asleep = standing(1, "rest", user(30, "wait_for_file(path)", "load"))
    live = look(
        on_gpu(0, 44, "total += loss.item()"),
        asleep,
        on_gpu(2, 45, "torch.cuda.synchronize()", SYNCHRONIZE),
    )
    (finding,) = findings(CAUSE, live)
    assert finding.where.ranks == (1,)
    assert "rank 0 waits at train.py:44" in finding.because


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("stopped", "stopped by a signal"),
        ("tracing-stop", "debugger"),
        ("disk-sleep", "in a read or write that does not return"),
    ],
)
def test_a_live_rank_that_something_holds(findings: Findings, state: str, words: str) -> None:
    held = standing(1, "forward", user(30), state=state)
    (finding,) = findings(CAUSE, look(moving(0), held))
    assert finding.confidence is Confidence.CERTAIN
    assert finding.where.ranks == (1,)
    assert words in finding.because
    assert ("kill -CONT 101" in finding.fixes[0].paste) is (state == "stopped")


def test_a_run_of_one_rank_that_is_stopped(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(standing(0, "rest", user(30), state="stopped")))
    assert finding.where.ranks == (0,)


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        # One computes at one line, and so moves; all wait, which other checks explain.
        look(in_reduction(0), standing(1, "forward", user(30), main_cpu=9.5)),
        look(in_reduction(0), in_collective(1, "barrier", 50)),
        # The look was too short for a long step; a rank of one alone holds up nobody.
        look(in_reduction(0), standing(1, "rest", user(30)), seconds=2.0),
        look(standing(0, "rest", user(30))),
        # All GPUs wait, for what nobody can see from here.
        look(on_gpu(0, 44, "total += loss.item()"), on_gpu(1, 44, "total += loss.item()")),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


def test_a_live_rank_stands_and_the_others_were_not_seen(findings: Findings) -> None:
    alone = look(standing(1, "rest", user(30, "wait_for_file(path)", "load")))
    assert findings(CAUSE, alone) == ()
    (finding,) = findings(CAUSE, msgspec.structs.replace(alone, world=2))
    assert finding.where.ranks == (1,)


HUNG = look(in_reduction(0), standing(1, "rest", user(30)), in_reduction(2))
BEHIND = recorded(
    records(0, call(40, over=True), call(41, "all_reduce", 500)),
    records(1, call(39, over=True), call(40, over=True)),
    records(2, call(40, over=True), call(41, "all_reduce", 500), call(42)),
    nccl=("  Rank 1 has launched up to operation 40 -- GPU 1 managed by process 101 on node a",),
)


def test_who_is_behind_where_no_stack_can_be_read(findings: Findings) -> None:
    (finding,) = findings(CAUSE, unseen(HUNG), BEHIND)
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.LIKELY)
    assert finding.where.ranks == (1,)
    assert (
        "rank 1 (pid 101 on node-0) did not enter collective 41 of the group "
        "nccl 0 (default_pg), all_reduce of 500 Float, in which ranks 0, 2 wait"
    ) in finding.because
    assert finding.evidence[0].value == "collective 40 (all_reduce of 1000 Float)"
    assert str(finding.evidence[-1].value).startswith("Rank 1 has launched up to operation 40")
    assert "--pid 101" in finding.fixes[0].paste


def test_a_stack_tells_more_and_nccl_has_a_word(findings: Findings) -> None:
    (finding,) = findings(CAUSE, HUNG, BEHIND)
    assert "train.py:30" in finding.because
    assert finding.evidence[-1].source == "NCCL RAS"


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (look(moving(0), moving(1), moving(2)), BEHIND),
        # It computes; it called something a moment ago; a file may be older than what it does.
        (unseen(HUNG, main_cpu=9.9), BEHIND),
        (
            unseen(HUNG),
            recorded(
                records(0, call(41)),
                records(1, call(40, over=True), idle=2.0),
                records(2, call(41)),
            ),
        ),
        (
            unseen(HUNG),
            recorded(*BEHIND.ranks[:2], records(2, call(41), told_by="dump file", age=60.0)),
        ),
        # It waits, too, for something else; nobody waits; all do; one tells nothing of itself.
        (
            unseen(HUNG),
            recorded(records(0, call(41)), records(1, call(40)), records(2, call(41))),
        ),
        (unseen(HUNG), recorded(*(records(one, call(41, over=True)) for one in range(3)))),
        (unseen(HUNG), recorded(*(records(one, call(41)) for one in range(3)))),
        (unseen(HUNG), recorded(*BEHIND.ranks[1:])),
    ],
)
def test_quiet_where_records_do_not_tell(
    findings: Findings, live: LiveLook, told: FlightRecords
) -> None:
    assert findings(CAUSE, live, told) == ()


def test_the_thread_that_fed_the_rank_has_died(findings: Findings) -> None:
    stuck = ending(
        0,
        "hung",
        doing="rest",
        stack=(user(12, "x = q.get()"),),
        thread="OSError: no disk at train.py:8 in feed",
        printed="OSError: no disk",
    )
    waits = ending(1, "hung", doing="all_reduce", stack=(user(13), ENGINE))
    (finding,) = findings(CAUSE, run(stuck, waits))
    assert "; before, a thread of rank 0 raised OSError: no disk at train.py:8" in finding.because
    # The stack of a rank that hung has no exception.
    assert finding.fixes[0].paste.endswith("x = q.get()")


@pytest.mark.parametrize(
    ("function", "full"), [("Connection._send", True), ("Connection._recv", False)]
)
def test_a_pipe_that_nobody_reads(findings: Findings, function: str, full: bool) -> None:
    puts = (
        user(72, "results.put(row)", "worker"),
        library("multiprocessing/connection.py", 384, function),
    )
    (finding,) = findings(CAUSE, look(in_reduction(0), standing(1, "rest", *puts)))
    assert ("for the pipe is full" in finding.because) is full
    assert ("join them afterwards" in finding.fixes[0].summary) is full


WANTS = user(57, "with self._lock:", "Buffer.sample")
ADDS = user(38, "with self._lock:", "Buffer.add")
COUNTS = user(34, "with self._lock:", "Buffer.__len__")
WRITES = user(41, "self.file.write(rows)", "Buffer.add")


def stuck_for_a_lock(
    findings: Findings, wants: Frame, place: Frame, taken: Frame, *, rank: int = 1
) -> Finding:
    thread = ScriptThread(rank=rank, place=place, within=(taken,), cpus=0.0, seconds=9.0)
    live = look(in_reduction(0), standing(1, "rest", wants))
    (finding,) = findings(CAUSE, live, ScriptThreads(host="node-0", threads=(thread,)))
    return finding


def test_a_lock_that_a_thread_takes_twice(findings: Findings) -> None:
    found = stuck_for_a_lock(findings, WANTS, COUNTS, ADDS)
    assert (
        "another thread of it has taken that lock at train.py:38 in Buffer.add "
        "(`with self._lock:`), and waits for it again at train.py:34 in Buffer.__len__"
    ) in found.because
    assert "threading.RLock()" in found.fixes[0].summary


def test_a_lock_that_a_thread_holds_while_it_works(findings: Findings) -> None:
    found = stuck_for_a_lock(findings, WANTS, WRITES, ADDS)
    assert "and is at train.py:41 in Buffer.add (`self.file.write(rows)`)" in found.because
    assert "RLock" not in found.fixes[0].summary


def test_a_lock_that_a_thread_holds_while_it_waits_for_something_else(findings: Findings) -> None:
    found = stuck_for_a_lock(findings, WANTS, user(41, "self.full.wait()", "Buffer.add"), ADDS)
    assert "and is at train.py:41 in Buffer.add (`self.full.wait()`)" in found.because


def test_a_lock_that_the_main_thread_has_taken_itself(findings: Findings) -> None:
    rank = msgspec.structs.replace(standing(1, "rest", WRITES, WANTS), within=(ADDS,))
    (finding,) = findings(CAUSE, look(in_reduction(0), rank))
    assert "this thread has already taken that lock at train.py:38" in finding.because
    assert "threading.RLock()" in finding.fixes[0].summary


@pytest.mark.parametrize(
    ("wants", "place", "taken"),
    [
        # Another class, another file, another lock, a call, a condition that is waited for.
        (WANTS, WRITES, user(38, "with self._lock:", "Log.add")),
        (WANTS, WRITES, user(38, "with self._lock:", "Buffer.add", "/home/u/log.py")),
        (WANTS, WRITES, user(38, "with self.file:", "Buffer.add")),
        (user(57, "with locked():"), WRITES, user(38, "with locked():")),
        (WANTS, user(41, "self._lock.wait()", "Buffer.add"), ADDS),
        (user(57, "rows = read()"), WRITES, ADDS),
    ],
)
def test_quiet_of_locks_that_are_not_the_same(
    findings: Findings, wants: Frame, place: Frame, taken: Frame
) -> None:
    assert "that lock" not in stuck_for_a_lock(findings, wants, place, taken).because


def test_quiet_of_a_lock_in_another_rank(findings: Findings) -> None:
    found = stuck_for_a_lock(findings, WANTS, COUNTS, ADDS, rank=0)
    assert "that lock" not in found.because


def test_a_lock_that_each_rank_keeps_from_itself(findings: Findings) -> None:
    threads = [
        ScriptThread(rank=rank, place=COUNTS, within=(ADDS,), cpus=0.0, seconds=9.0)
        for rank in (0, 1)
    ]
    live = look(standing(0, "rest", WANTS), standing(1, "rest", WANTS))
    (finding,) = findings(CAUSE, live, ScriptThreads(host="node-0", threads=tuple(threads)))
    assert finding.where.ranks == (0, 1)
    assert "another thread of it has taken that lock" in finding.because


def test_quiet_where_each_rank_wants_a_lock_that_may_be_another_ones(findings: Findings) -> None:
    live = look(standing(0, "rest", WANTS), standing(1, "rest", WANTS))
    assert findings(CAUSE, live) == ()


def test_a_lock_in_a_run_that_ended(findings: Findings) -> None:
    thread = ScriptThread(rank=1, place=COUNTS, within=(ADDS,), cpus=0.0, seconds=0.0)
    stuck = msgspec.structs.replace(hung(1, "rest", WANTS), threads=(thread,))
    (finding,) = findings(CAUSE, run(WAITING, stuck))
    assert "another thread of it has taken that lock at train.py:38" in finding.because
    assert "threading.RLock()" in finding.fixes[0].summary
    (finding,) = findings(CAUSE, run(WAITING, hung(1, "rest", WANTS)))
    assert "that lock" not in finding.because
