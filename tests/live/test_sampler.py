from __future__ import annotations

from ddoctor.live.sampler import whole
from tests.training_run import ALL_REDUCE, library, user

BEGINS = user(99, "main()", "<module>")
ELSEWHERE = user(101, "finish()", "<module>")
STEP = user(30, "step(batch)")


def test_a_stack_without_its_beginning_tells_nothing() -> None:
    sound = [(BEGINS, STEP), (BEGINS, STEP, ALL_REDUCE), (ELSEWHERE,)]
    torn = [(library("selectors.py", 203, "__exit__"),), (STEP,), ()]
    assert whole([*sound, *torn]) == sound


def test_where_all_are_alike_all_stay() -> None:
    assert whole([(), ()]) == [(), ()]
    assert whole([]) == []
