"""Samples of other threads: what they show, and that they keep nothing alive."""

from __future__ import annotations

import sys
import time
from functools import partial
from multiprocessing import get_context
from random import uniform
from threading import Event, Thread, get_ident
from timeit import repeat as timed
from weakref import ref

import pytest

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


def test_samples_at_random_see_short_work_in_python() -> None:
    end, interval = Event(), sys.getswitchinterval()

    def loop() -> None:
        while not end.is_set():
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
            time.sleep(0.0005)

    thread = Thread(target=loop)
    thread.start()
    assert thread.ident is not None
    asleep, looks = loop.__code__.co_firstlineno + 5, 100
    met = []
    for _ in range(looks):
        stacks.at_random()
        met.append(stacks.of_threads(thread.ident, 0)[thread.ident].f_lineno)
        time.sleep(0.001)
    end.set()
    thread.join()
    # It would be met asleep alone: only then would it let the interpreter go.
    assert met.count(asleep) < 0.7 * looks
    assert sys.getswitchinterval() == interval


@pytest.mark.ward
def test_samples_at_random_see_long_calls_that_keep_the_interpreter() -> None:
    end, numbers = Event(), range(100_000)
    while (seconds := min(timed(partial(sum, numbers), number=1, repeat=3))) < 0.01:
        numbers = range(2 * len(numbers))

    def loop() -> None:
        while not end.is_set():
            sum(numbers)
            time.sleep(seconds)

    thread = Thread(target=loop)
    thread.start()
    main = thread.ident
    assert main is not None
    at_work, looks = loop.__code__.co_firstlineno + 2, 100

    def share() -> float:
        met = []
        for _ in range(looks):
            time.sleep(uniform(0.02, 0.06))
            stacks.at_random()
            met.append(stacks.of_threads(main, 0)[main].f_lineno)
        return met.count(at_work) / looks

    # A tenth, if a sample came at most 5 ms after the end of the last such call. Where other
    # processes take the CPUs, a thread that sleeps may wake up only while the other one sleeps.
    found = any(share() > 0.2 for _ in range(5))
    end.set()
    thread.join()
    assert found


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_worker_that_is_forked_during_a_sample_has_the_usual_interval() -> None:
    interval = sys.getswitchinterval()
    sampler = Thread(target=stacks.at_random)
    sys.setswitchinterval(0.5)
    sampler.start()
    while sys.getswitchinterval() == 0.5:
        time.sleep(0.001)
    context = get_context("fork")
    with context.Pool(1) as pool:
        theirs = pool.apply(sys.getswitchinterval)
    sampler.join()
    sys.setswitchinterval(interval)
    assert theirs == 0.5
