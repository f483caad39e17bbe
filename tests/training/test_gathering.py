"""A rank answers while it reports its state: an answer may take as long as a lost rank."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

from ddoctor.cluster.store import ClusterStore, MemoryStore, decompressed, key
from ddoctor.training.child import Child
from ddoctor.training.gathering import Answers, Gathering
from ddoctor.training.messages import Window
from ddoctor.training.reporting import Followers, reply

LIMIT_SECONDS = 60.0
TURN = 3


class Slow:
    """A child whose record is only there when the test says so."""

    def __init__(self, rank: int, ready: Event) -> None:
        self.launched = SimpleNamespace(rank=rank, world_size=2)
        self.asked: list[int] = []
        self._ready = ready

    def so_far(self, first: int, *, stack: bool) -> dict[str, Any]:
        self.asked.append(first)
        assert self._ready.wait(LIMIT_SECONDS)
        return {"first": first, "stack": stack}


def child(one: Slow) -> Child:
    return cast("Child", one)


def answer(store: ClusterStore, number: int) -> dict[str, Any] | None:
    text = store.get(key("row", TURN, number, 1), str)
    return decompressed(text, dict[str, Any]) if text is not None else None


def test_an_answer_that_takes_long_holds_up_nothing() -> None:
    store, ready = ClusterStore(MemoryStore(), "a"), Event()
    slow = Slow(1, ready)
    answers = Answers(store, TURN, child(slow))
    answers.look(None)
    assert slow.asked == []
    window = Window(number=1, first=40, stack=True)
    answers.look(window)
    answers.look(window)
    assert answer(store, 1) is None
    ready.set()
    answers.finish()
    assert answer(store, 1) == {"first": 40, "stack": True}
    assert slow.asked == [40]


def test_each_window_is_answered_once() -> None:
    store, ready = ClusterStore(MemoryStore(), "a"), Event()
    ready.set()
    slow = Slow(1, ready)
    answers = Answers(store, TURN, child(slow))
    for number in (1, 2):
        window = Window(number=number, first=10 * number)
        answers.look(window)
        answers.look(window)
    answers.finish()
    assert slow.asked == [10, 20]
    assert answer(store, 2) == {"first": 20, "stack": False}


def test_rank_0_waits_for_all_and_asks_one_question_at_a_time() -> None:
    store, ready = ClusterStore(MemoryStore(), "a"), Event()
    ready.set()
    gathering = Gathering(Followers(store, TURN, tick=0.1), child(Slow(0, ready)))
    gathering.ask(7)
    assert gathering.asking
    assert gathering.answers() is None
    assert reply(store, TURN).directive.window == Window(number=1, first=7)
