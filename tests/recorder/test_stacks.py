"""Samples of other threads: what they show, and that they keep nothing alive."""

from __future__ import annotations

from threading import Event, Thread
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
    found = stacks.of_threads()
    end.set()
    thread.join()
    assert held[0]() is None

    assert thread.ident is not None
    frame: stacks.AnyFrame | None = found[thread.ident]
    shown = []
    while frame is not None:
        shown.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    own = [one for one in shown if one[0] in ("outer", "inner")]
    first = outer.__code__.co_firstlineno
    assert own == [("inner", first + 7), ("outer", first + 3)]


def test_the_thread_that_looks_is_left_out() -> None:
    frames = stacks.of_threads()
    assert all(frame.f_code.co_name != "of_threads" for frame in frames.values())
