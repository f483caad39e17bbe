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
    BUSY_RATE,
    LEAST_RATE,
    LONGER,
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


def test_a_rank_of_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    sampling = SamplingRate([rank_process()])
    assert set(sampling.rates.values()) == {RATE}
    assert sampling.ends == (SOON_SECONDS, USUAL_SECONDS)
    assert SamplingRate([rank_process()], 60.0).ends == (SOON_SECONDS, USUAL_SECONDS, 60.0)
    assert SamplingRate([rank_process()], watch=True).ends == (WATCHING_SECONDS,)


@pytest.mark.parametrize(("ranks", "cores", "busy"), [(2, 2, True), (8, 4, True), (2, 3, False)])
def test_ranks_that_need_all_cores(
    ranks: int, cores: int, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    sampling = SamplingRate([rank_process()] * ranks)
    assert set(sampling.rates.values()) == {BUSY_RATE if busy else RATE}
    # A hang is recognised as soon as ever.
    assert sampling.ends == (SOON_SECONDS, USUAL_SECONDS * (LONGER if busy else 1))


@pytest.mark.parametrize("watch", [False, True])
def test_a_short_time_has_enough_samples(watch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    short = SamplingRate([rank_process()] * 2, 4.0, watch=watch)
    assert short.ends == (4.0,)
    (rate,) = short.rates.values()
    assert BUSY_RATE < rate <= RATE
    assert rate * 4.0 > 20


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
    assert sampling.seconds > USUAL_SECONDS
    # As many samples as else, before anything is told.
    (first, last) = sampling.ends
    assert first * rate >= 6
    assert last * rate >= 20


def test_what_was_asked_for_is_done() -> None:
    with threads(2000):
        sampling = SamplingRate([rank_process()], 7.0)
    assert sampling.seconds == sampling.ends[-1] == 7.0


def test_the_more_threads_the_less_often() -> None:
    rates = [rate_at(number) for number in (1, 100, 1000, 10_000, 1_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (RATE, LEAST_RATE)
