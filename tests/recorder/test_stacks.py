"""Samples of other threads: what they show, and that they keep nothing alive."""

from __future__ import annotations

from threading import Event, Thread, get_ident
from weakref import ref

from ddoctor.recorder import stacks


class Loader:
    """An object that only a function's frame holds."""


def test_a_copy_outlives_the_function_and_holds_none_of_its_objects() -> None:
    running, end, held = Event(), Event(), []

    def outer() -> None:
        loader = Loader()
        held.append(ref(loader))
        inner()

    def inner() -> None:
        running.set()
        end.wait()

    thread = Thread(target=outer)
    thread.start()
    running.wait()
    assert thread.ident is not None
    found = stacks.of_threads(get_ident(), 1000)
    end.set()
    thread.join()
    assert held[0]() is None

    frame: stacks.AnyFrame | None = found[thread.ident]
    shown = []
    while frame is not None:
        shown.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    own = [one for one in shown if one[0] in ("outer", "inner")]
    first = outer.__code__.co_firstlineno
    assert own == [("inner", first + 7), ("outer", first + 3)]


def test_of_many_threads_the_main_one_is_shown_alone() -> None:
    end = Event()
    threads = [Thread(target=end.wait) for _ in range(3)]
    for one in threads:
        one.start()
    first = threads[0].ident
    assert first is not None
    few, many = stacks.of_threads(first, 1000), stacks.of_threads(first, 2)
    end.set()
    assert {one.ident for one in threads} <= {*few}
    assert {*many} == {first}
    # The thread that looks is left out.
    assert get_ident() not in few
