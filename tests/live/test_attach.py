"""Attached to a training that nobody has prepared: who is the cause, where, and who is not."""

from __future__ import annotations

import signal

import pytest

from tests.live.conftest import StartLive

FAR = 20


def test_a_healthy_run(start: StartLive) -> None:
    # A step that leaves its CPUs to the workers, also where other programs run.
    live = start(workers=1, forward="time.sleep(0.05)")
    live.wait_for(FAR)
    before = live.step(0)
    attached = live.attach()
    assert attached.causes == [], attached.report
    assert attached.exit_code == 0
    assert live.step(0) > before


@pytest.mark.ward
@pytest.mark.parametrize(
    "work",
    [
        pytest.param("time.sleep(1.5)", id="long steps"),
        pytest.param(
            "if rank == 0:\n    sum(range(100_000_000))", id="rank 0 computes for seconds"
        ),
    ],
)
def test_slow_is_not_stopped(start: StartLive, work: str) -> None:
    live = start(work=work)
    live.wait_for(1)
    hangs = {"rank-stuck-outside-collective", "rank-dependent-control-flow"}
    assert not hangs & set(live.attach().causes)


@pytest.mark.ward
def test_a_rank_that_stands_outside_of_collectives(start: StartLive) -> None:
    live = start(work="if rank == 1 and step == 20: time.sleep(1_000_000)")
    live.wait_for(FAR - 1)
    attached = live.attach()
    assert attached.exit_code == 1
    assert attached.first["cause"] == "rank-stuck-outside-collective"
    assert attached.first["where"]["ranks"] == [1]
    assert f"{live.place('time.sleep(1_000_000)')} in work" in attached.first["because"]
    assert "rank 0 waits in backward at train.py" in attached.first["because"]


@pytest.mark.ward
def test_a_rank_that_is_stopped(start: StartLive) -> None:
    live = start()
    live.wait_for(FAR)
    rank = live.ranks()[1]
    live.stop(1)
    attached = live.attach()
    assert attached.first["cause"] == "rank-stuck-outside-collective"
    assert attached.first["where"]["ranks"] == [1]
    assert f"kill -CONT {rank.pid}" in attached.first["fixes"][0]["paste"]
    before = live.step(0)
    rank.send_signal(signal.SIGCONT)
    live.wait_for(before + 3)


@pytest.mark.ward
def test_a_rank_in_another_branch(start: StartLive) -> None:
    live = start(
        work="""
        skip = step == 20 and rank == 1
        if skip: dist.all_reduce(torch.ones(1))
        if step == 20: dist.barrier()
        """
    )
    live.wait_for(FAR - 1)
    attached = live.attach()
    assert attached.first["cause"] == "rank-dependent-control-flow"
    assert f"all_reduce at {live.place('dist.all_reduce')}" in attached.first["because"]
    assert f"barrier at {live.place('dist.barrier')}" in attached.first["because"]


@pytest.mark.ward
def test_a_worker_that_waits_for_a_lock(start: StartLive) -> None:
    live = start(
        item="""
        if rank == 1 and index == 200:
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        """,
        workers=1,
    )
    live.wait_for(20)
    attached = live.attach()
    assert attached.first["cause"] == "dataloader-worker-deadlock"
    assert attached.first["where"]["ranks"] == [1]
    assert "its worker" in attached.first["because"]
    assert "`lock.acquire()`" in attached.first["because"]
