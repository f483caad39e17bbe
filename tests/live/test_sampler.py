from __future__ import annotations

import sys

import psutil

from ddoctor.live.rank_processes import RankProcess
from ddoctor.live.sampler import Sampler, whole
from ddoctor.live.sampling_rate import SamplingRate
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


def test_a_rank_that_ends_meanwhile() -> None:
    process = psutil.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    rank = RankProcess(process=process, rank=0, world=1, command=("train.py",))
    sampling = SamplingRate([rank], 3.0)
    sampler = Sampler([rank], sampling, native=False)
    process.kill()
    process.wait()
    sampler.until(0.5)
    live, *_ = sampler.summary()
    assert live.ranks[0].unseen == "it ended while it was sampled"
