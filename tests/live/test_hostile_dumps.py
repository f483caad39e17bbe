"""Dumps that would execute, fill the memory, or make evidence that no bundle can hold."""

from __future__ import annotations

import json
import os
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import TrainingRun
from ddoctor.live import logs
from ddoctor.reading import flight_recorder
from ddoctor.reading.flight_recorder import Trace
from ddoctor.reading.log_endings import LONGEST_MESSAGE
from tests.fuzz import seeds


class Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def changed(**fields: object) -> dict[str, Any]:
    document = seeds.dump()
    document["entries"][0] |= fields
    return document


def test_a_sound_dump() -> None:
    assert Trace(pickle.dumps(seeds.dump(), protocol=2)).newest > 0
    assert Trace(json.dumps(seeds.dump()).encode()).newest > 0


def test_a_pickle_executes_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    with pytest.raises(ValueError, match="more than plain data"):
        Trace(pickle.dumps({"entries": [], "more": Command(mark)}, protocol=2))
    assert not mark.exists()


def test_a_pickle_asks_for_no_large_table() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Trace(b"\x80\x02}r" + struct.pack("<I", 2**27) + b".")
    # In C this took 2 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_one_list_that_is_named_many_times() -> None:
    frame = {"name": "f", "filename": "x.py", "line": 1}
    entry = changed(frames=[frame] * 2_000)["entries"][0]
    with pytest.raises(ValueError, match="frames and shapes"):
        Trace(pickle.dumps({"entries": [entry] * 2_000}, protocol=2))


def test_a_dump_that_is_too_large() -> None:
    with pytest.raises(ValueError, match="more than 64 MiB"):
        Trace(b" " * (flight_recorder.MOST_BYTES + 1))


@pytest.mark.parametrize(
    "fields",
    [
        {"collective_seq_id": -1},
        {"time_created_ns": 10**30},
        {"input_sizes": [[-5]]},
        {"state": "x" * 20_000},
        {"frames": [{"name": "f", "filename": "x.py", "line": 10**19}]},
    ],
)
def test_what_no_bundle_can_hold(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no records of torch's flight recorder"):
        Trace(json.dumps(changed(**fields)).encode())


def test_a_log_with_a_number_of_5000_digits_and_a_long_message(tmp_path: Path) -> None:
    log = tmp_path / "log"
    digits = "9" * 5_000
    log.write_text(
        f"[rank{digits}]: x\n{digits}: y\n"
        f'  File "train.py", line {digits}, in main\n'
        "Traceback (most recent call last):\n"
        '  File "train.py", line 4, in main\n'
        f"ValueError: {'word ' * 5_000}\n"
        f"  rank      : {digits} (local_rank: 1)\n"
    )
    found = Evidence(logs.sections([log], [0], first=0, host="a", command=()))
    (ending,) = found.all(TrainingRun)[0].ranks
    assert ending.exception == "ValueError"
    assert len(ending.message) <= LONGEST_MESSAGE
