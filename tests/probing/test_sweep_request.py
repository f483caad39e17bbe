"""The options of a sweep, and what makes no sense."""

from __future__ import annotations

import msgspec
import pytest

from ddoctor.errors import DoctorError
from ddoctor.options import parse
from ddoctor.probing import catalog
from ddoctor.probing.options import ProbeOptions
from ddoctor.probing.sweep_request import PROBE, SweepRequest, asked

GIB = 2**30


def options(*words: str) -> ProbeOptions:
    found = parse(ProbeOptions, words, "probe")
    assert found is not None
    return found


def read(*words: str, probes: tuple[str, ...] = (PROBE,)) -> SweepRequest:
    return msgspec.json.decode(asked(options(*words), probes), type=SweepRequest)


def test_what_was_said() -> None:
    found = read("--workload", "tests.work:make", "--micro-batch=8", "--device-memory=24GiB,20GiB")
    assert (found.workload, found.micro_batch) == ("tests.work:make", 8)
    assert [found.memory_of(rank, 2) for rank in range(2)] == [24 * GIB, 20 * GIB]


def test_how_it_is_spread_and_how_long_samples_are() -> None:
    found = read("--workload", "tests:make", "--fsdp", "--sequence=4096")
    assert (found.sharded, found.sequence) == (True, 4096)
    assert not read("--workload", "tests:make").sharded


def test_one_size_is_for_all_ranks_and_none_is_what_there_is() -> None:
    one = read("--workload", "tests:make", "--device-memory", "24GiB")
    assert [one.memory_of(rank, 8) for rank in (0, 7)] == [24 * GIB, 24 * GIB]
    assert read("--workload", "tests:make").memory_of(0, 8) is None


def test_sizes_for_another_number_of_ranks() -> None:
    found = read("--workload", "tests:make", "--device-memory", "24GiB,20GiB")
    with pytest.raises(DoctorError, match="has 2 sizes, but 8 ranks run on a host"):
        found.memory_of(0, 8)


def test_it_runs_only_where_it_is_asked_for() -> None:
    assert PROBE in catalog.names()
    assert PROBE not in catalog.usual()


def test_without_a_workload_there_is_no_sweep() -> None:
    assert asked(options(), ("matmul",)) == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "needs a training: --workload package.module:factory"),
        (("--workload", "train"), "--workload train: give it as package.module:factory"),
        (("--workload", "train.py:make()"), "give it as package.module:factory"),
        (("--workload", "a/b:make"), "give it as package.module:factory"),
        (("--workload", "no_such.work:make"), "no module no_such in /"),
        (("--micro-batch", "8"), "--micro-batch needs --workload"),
        (("--sequence", "8"), "--sequence needs --workload"),
        (("--fsdp",), "--fsdp needs --workload"),
        (("--workload", "tests:make", "--sequence", "-8"), "--sequence -8: give a whole number"),
        (("--device-memory", "8GiB"), "--device-memory needs --workload"),
        (
            ("--workload", "tests:make", "--micro-batch", "0"),
            "--micro-batch 0: give a whole number",
        ),
        (
            ("--workload", "tests:make", "--device-memory", "8"),
            "--device-memory 8: give it as 10GB",
        ),
        (
            ("--workload", "tests:make", "--device-memory", "8GiB,"),
            "--device-memory : give it as 10GB",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(DoctorError) as error:
        asked(options(*words), (PROBE,))
    assert told in str(error.value)
    assert "\n" not in str(error.value)
