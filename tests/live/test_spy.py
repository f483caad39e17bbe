from __future__ import annotations

from ddoctor.live.spy import LEAST_RATE, RATE, rate_at, why


def test_the_more_threads_the_less_often_it_looks() -> None:
    rates = [rate_at(threads) for threads in (1, 100, 1000, 10_000, 1_000_000)]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (RATE, LEAST_RATE)


def test_a_python_that_is_newer_than_py_spy() -> None:
    # As py-spy 0.3.11 says it of Python 3.11.
    told = "Error: Unsupported version of Python: 3.11.0\n   0: failure::backtrace::internal"
    assert why(told) == (
        "this py-spy knows no Python 3.11.0: python -m pip install --upgrade py-spy"
    )
    assert why("Error: something else\nmore") == "something else"
    assert why("") == "py-spy saw nothing"
