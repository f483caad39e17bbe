"""The ranks of a host report through one of them, and by themselves where that one is lost."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from threading import Thread
from threading import enumerate as enumerate_threads

import pytest
from msgspec.structs import replace

from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.cluster.store import ClusterStore, MemoryStore, StoreLost, key
from ddoctor.recorder.tape import COLLECTIVE
from ddoctor.training import relay
from ddoctor.training.child import SAMPLE_SECONDS
from ddoctor.training.line import Line
from ddoctor.training.messages import Now
from ddoctor.training.reporting import Followers, host_tick, reply

TURN = 0
LIMIT_SECONDS = 10.0
NOW = Now(
    steps=1,
    phase=COLLECTIVE,
    age=0.5,
    doing="all_reduce",
    busy=True,
    over=False,
    exit_code=None,
    host="node-1",
    pid=1,
    stopped=False,
)


class Breakable(MemoryStore):
    """A store that can be lost."""

    lost = False

    def get(self, keys: Sequence[str]) -> dict[str, str]:
        if self.lost:
            raise ConnectionError
        return super().get(keys)


@pytest.fixture
def memory() -> Breakable:
    return Breakable()


@pytest.fixture
def store(memory: Breakable) -> Iterator[ClusterStore]:
    one = ClusterStore(memory, "a")
    yield one
    memory.lost = True
    eventually(lambda: all(thread.name != "relay" for thread in enumerate_threads()))


def followers(store: ClusterStore) -> Followers:
    return Followers(store, TURN, 0.1, channel=token_hex(16))


def lines(store: ClusterStore, *ranks: int, local_size: int = 4) -> list[Line]:
    return [
        Line(
            store,
            TURN,
            LaunchedRank(rank=rank, world_size=4, local_rank=rank, local_size=local_size),
        )
        for rank in ranks
    ]


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def channel(store: ClusterStore) -> str:
    return reply(store, TURN).directive.channel


def slots(store: ClusterStore) -> int:
    return store.add(key("slots", TURN), 0)


@contextmanager
def another_relay(name: str, *, ends: bool = False) -> Iterator[None]:
    """A process that has taken the name, and answers nothing, or ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0ddoctor/{name}")
        listener.listen()
        if ends:
            Thread(target=lambda: listener.accept()[0].close()).start()
        yield


def test_the_ranks_of_a_host_share_a_slot(store: ClusterStore) -> None:
    leader = followers(store)
    ranks = lines(store, 1, 2, 3)
    for steps in range(3):
        for one in ranks:
            one.exchange(replace(NOW, steps=steps))
    eventually(lambda: leader.states() == dict.fromkeys((1, 2, 3), replace(NOW, steps=2)))
    assert slots(store) == 1
    leader.want(end=True)
    eventually(lambda: all(one.exchange(NOW).directive.end for one in ranks))


def test_without_neighbours_a_rank_reports_by_itself(store: ClusterStore) -> None:
    leader = followers(store)
    for one in lines(store, 1, 2, local_size=1):
        one.exchange(NOW)
    assert leader.states() == {1: NOW, 2: NOW}
    assert slots(store) == 2


def test_before_rank_0_starts_only_an_end_is_reported(store: ClusterStore) -> None:
    first, second = lines(store, 1, 2)
    first.exchange(NOW)
    second.exchange(replace(NOW, over=True))
    assert followers(store).states() == {2: replace(NOW, over=True)}


@pytest.mark.parametrize("ends", [True, False])
def test_a_relay_that_is_gone_or_blocked_costs_no_other_rank(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(relay, "ANSWER_SECONDS", 0.2)
    leader = followers(store)
    leader.want(end=True)
    (one,) = lines(store, 1)
    with another_relay(channel(store), ends=ends):
        assert one.exchange(NOW).directive.end
        assert leader.states() == {1: NOW}
        one.exchange(replace(NOW, steps=2))
    assert leader.states() == {1: replace(NOW, steps=2)}
    assert slots(store) == 1


def test_a_rank_that_leaves_is_forgotten_but_not_its_end(store: ClusterStore) -> None:
    leader = followers(store)
    first, second, third = lines(store, 1, 2, 3)
    first.exchange(NOW)
    second.exchange(NOW)
    third.exchange(replace(NOW, over=True))
    eventually(lambda: len(leader.states()) == 3)
    del second, third
    eventually(lambda: leader.states() == {1: NOW, 3: replace(NOW, over=True)})


def test_the_slot_that_a_rank_took_last_is_right(store: ClusterStore) -> None:
    leader = followers(store)
    for number, steps in enumerate((5, 3)):
        store.add(key("slots", TURN))
        store.set(key("progress", TURN, number), {1: replace(NOW, steps=steps)})
    assert leader.states()[1].steps == 3


def test_a_lost_store_is_found_by_each_rank(store: ClusterStore, memory: Breakable) -> None:
    followers(store)
    ranks = lines(store, 1, 2)
    for one in ranks:
        one.exchange(NOW)
    memory.lost = True
    for one in ranks:
        with pytest.raises(StoreLost):
            eventually(lambda one=one: one.exchange(NOW) is None)  # type: ignore[misc]


def test_a_process_of_another_user_is_no_relay(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = followers(store)
    uid = os.getuid()
    with another_relay(channel(store)):
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        (one,) = lines(store, 1)
        one.exchange(NOW)
    assert leader.states() == {1: NOW}


def test_the_guide_says_how_often_large_runs_report() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/whole-run.md").read_text()
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \|$", guide, re.MULTILINE)
    assert len(rows) == 3
    for hosts, seconds in rows:
        ranks = 8 * int(hosts.replace(",", ""))
        launched = LaunchedRank(rank=0, world_size=ranks, local_rank=0, local_size=8)
        store = ClusterStore(MemoryStore(), "a", ranks=ranks)
        assert f"{max(SAMPLE_SECONDS, host_tick(store, launched)):.2f}" == seconds
