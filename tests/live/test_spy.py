from __future__ import annotations

from ddoctor.live.spy import LEAST_RATE, RATE, rate_at


def test_the_more_threads_the_less_often_it_looks() -> None:
    rates = [rate_at(threads) for threads in (1, 100, 1000, 10_000, 1_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (RATE, LEAST_RATE)
