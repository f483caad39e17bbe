from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import HotLine
from ddoctor.evidence.threads import ScriptThread, ScriptThreads
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import look, moving
from tests.training_loaders import loader_with
from tests.training_steps import COUNT, USUAL, steps

CAUSE = "helpers-take-cpus"
STEP = 0.105
"""Seconds of a usual step."""
LINE = HotLine(
    phase="loader",
    file="tiles.py",
    line=50,
    function="__getitem__",
    text='return shard["images"][row]',
    samples=40,
)


POLLS = Frame(
    file="log.py", line=12, function="write", text="row = rows.get_nowait()", of_user=True
)


def use(
    waited: float | None,
    *,
    neighbours: float = 0.0,
    threads: int = 1,
    helpers: float = 0.0,
    helper: Frame | None = None,
) -> RankUse:
    hosts = (
        RankHost(
            rank=rank,
            host="node-0",
            local_ranks=2,
            threads=threads,
            affinity=(0, 1),
            host_cpus=2,
            waited=waited,
            neighbours=neighbours,
            helpers=helpers,
            helper=helper,
        )
        for rank in range(2)
    )
    return RankUse(hosts=tuple(hosts), flags=())


def loading(cpus: float) -> Loading:
    """The worker of each rank uses so many CPUs."""
    loaders = (
        loader_with(
            rank=rank,
            num_workers=1,
            taken=COUNT,
            collated=COUNT,
            fetched=COUNT,
            fetch_seconds=COUNT * STEP * cpus,
            fetch_cpu_seconds=COUNT * STEP * cpus,
            wait_seconds=(0.0,) * COUNT,
            wait_steps=tuple(range(COUNT)),
            lines=(LINE,),
        )
        for rank in range(2)
    )
    return Loading(loaders=tuple(loaders))


def threads(cpus: float, text: str) -> ScriptThreads:
    place = Frame(file="feed.py", line=33, function="offer", text=text, of_user=True)
    return ScriptThreads(
        threads=tuple(
            ScriptThread(rank=rank, place=place, cpus=cpus, seconds=8.0) for rank in range(2)
        )
    )


def test_workers_that_decode_expensive_items(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.3), loading(0.45))
    assert finding.severity is Severity.NOTE
    assert "wait for a CPU for 30% of the time" in finding.because
    assert "workers use 0.45 CPUs a rank, mostly at tiles.py:50 in __getitem__" in finding.because
    assert "compute the items once" in finding.fixes[0].summary
    assert "--cpus-per-task=2" in finding.fixes[-1].paste


@pytest.mark.parametrize("waited", [0.16, 0.3])
@pytest.mark.parametrize(
    "line",
    ["self.ready.put(item, timeout=1e-5)", "time.sleep(0)", "sleep(0.0)", "time.sleep(0.001)"],
)
def test_a_thread_that_polls(findings: Findings, waited: float, line: str) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(waited), threads(0.2, line))
    assert finding.severity is Severity.WARNING
    assert "uses 0.2 CPUs at feed.py:33 in offer" in finding.because
    assert "let it sleep" in finding.fixes[0].summary


@pytest.mark.parametrize("line", ["rows = decode(blob)", "time.sleep(0.5)", "time.sleep(10)"])
def test_a_thread_that_works(findings: Findings, line: str) -> None:
    works = threads(0.3, line)
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.25), works)
    assert len(finding.fixes) == 1


def test_an_archive_that_is_opened_for_each_item(findings: Findings) -> None:
    opens = replace(LINE, text="with zipfile.ZipFile(self.path) as z:")
    loaders = [replace(one, lines=(opens,)) for one in loading(0.45).loaders]
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.3), Loading(loaders=tuple(loaders)))
    assert finding.severity is Severity.WARNING
    assert "open it once in each worker: tiles.py:50" in finding.fixes[0].summary


def test_in_a_live_run(findings: Findings) -> None:
    """The worker of each rank uses 4 of 10 seconds."""
    live = look(*(moving(rank, workers=1) for rank in range(2)))
    (finding,) = findings(CAUSE, live, use(0.3))
    assert finding.severity is Severity.NOTE
    assert "workers use 0.4 CPUs a rank, mostly at" in finding.because


def test_a_thread_that_polls_in_a_live_run(findings: Findings) -> None:
    live = look(*(moving(rank) for rank in range(2)))
    (finding,) = findings(CAUSE, live, use(0.15), threads(0.2, "time.sleep(0)"))
    assert finding.severity is Severity.WARNING
    assert findings(CAUSE, live, use(0.15), threads(0.2, "rows = decode(blob)")) == ()


@pytest.mark.parametrize(
    ("hosts", "workers"),
    # py-spy itself takes a part of the CPUs; no workers; others use the CPUs.
    [(use(0.15), 1), (use(0.3), 0), (use(0.3, neighbours=1.2), 1)],
)
def test_quiet_in_a_live_run(findings: Findings, hosts: RankUse, workers: int) -> None:
    live = look(*(moving(rank, workers=workers) for rank in range(2)))
    assert findings(CAUSE, live, hosts) == ()


@pytest.mark.parametrize(
    ("hosts", "cpus"),
    [
        # No rank waits, or it is not known; workers use little; others use the CPUs.
        (use(0.05), 0.45),
        (use(None), 0.45),
        (use(0.3), 0.1),
        (use(0.3, neighbours=1.2), 0.45),
        # torch's own threads are too many.
        (use(0.3, threads=2), 0.45),
    ],
)
def test_quiet(findings: Findings, hosts: RankUse, cpus: float) -> None:
    assert findings(CAUSE, steps(USUAL, USUAL), hosts, loading(cpus)) == ()


def test_a_process_that_polls(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.5, helpers=0.48, helper=POLLS))
    assert finding.severity is Severity.WARNING
    assert (
        "while another process of each uses 0.48 CPUs at log.py:12 in write "
        "(`row = rows.get_nowait()`)"
    ) in finding.because
    assert "sleep until there is something to do" in finding.fixes[0].summary


def test_a_process_that_works(findings: Findings) -> None:
    works = replace(POLLS, text="frame = render(state)")
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.3, helpers=0.4, helper=works))
    assert finding.severity is Severity.NOTE
    assert "frame = render(state)" in finding.because
    assert len(finding.fixes) == 1
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), use(0.3, helpers=0.4))
    assert "another process of each uses 0.4 CPUs" in finding.because


def test_a_process_that_polls_in_a_live_run(findings: Findings) -> None:
    ranks = [moving(rank, workers=1) for rank in range(2)]
    polling = [
        replace(one, workers=tuple(replace(row, stack=(POLLS,)) for row in one.workers))
        for one in ranks
    ]
    (finding,) = findings(CAUSE, look(*polling), use(0.15))
    assert finding.severity is Severity.WARNING
    assert "another process of each uses 0.4 CPUs at log.py:12" in finding.because


def test_quiet_where_a_process_uses_little(findings: Findings) -> None:
    assert findings(CAUSE, steps(USUAL, USUAL), use(0.5, helpers=0.2, helper=POLLS)) == ()
    assert findings(CAUSE, steps(USUAL, USUAL), use(0.05, helpers=0.9, helper=POLLS)) == ()
