"""How often ranks are looked at, by the threads of a real process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import psutil
import pytest

from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.sampling_rate import (
    LEAST_RATE,
    MOST_THREADS,
    RATE,
    SOON_SECONDS,
    USUAL_SECONDS,
    WATCHING_SECONDS,
    SamplingRate,
    rate_at,
)


def rank_process() -> RankProcess:
    return RankProcess(process=psutil.Process(), rank=0, world=1, command=("train.py",))


@contextmanager
def threads(number: int) -> Iterator[None]:
    done = Event()
    started = [Thread(target=done.wait) for _ in range(number)]
    for one in started:
        one.start()
    try:
        yield
    finally:
        done.set()
        for one in started:
            one.join()


def test_a_rank_of_few_threads() -> None:
    sampling = SamplingRate([rank_process()])
    assert set(sampling.rates.values()) == {RATE}
    assert sampling.span(None, watch=False) == USUAL_SECONDS
    assert sampling.span(None, watch=True) == WATCHING_SECONDS
    assert sampling.ends(USUAL_SECONDS) == (SOON_SECONDS[0], USUAL_SECONDS)
    assert sampling.ends(60.0) == (*SOON_SECONDS, 60.0)


def test_one_of_many_is_looked_at_less_often_and_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    with threads(2000):
        sampling = SamplingRate([rank_process()])
    (many,) = sampling.crowded.values()
    assert many > 2000 > MOST_THREADS
    (rate,) = sampling.rates.values()
    assert rate < RATE
    assert sampling.span(None, watch=False) > USUAL_SECONDS
    # As many samples as else, before anything is told.
    (first, last) = sampling.ends(sampling.span(None, watch=False))
    assert first * rate >= 6
    assert last * rate >= 20


def test_what_was_asked_for_is_done() -> None:
    with threads(2000):
        sampling = SamplingRate([rank_process()])
    assert sampling.span(7.0, watch=False) == 7.0
    assert sampling.ends(4.0) == (4.0,)


def test_the_more_threads_the_less_often() -> None:
    rates = [rate_at(number) for number in (1, 100, 1000, 10_000, 1_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (RATE, LEAST_RATE)
