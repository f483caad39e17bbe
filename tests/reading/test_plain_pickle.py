"""Pickles of plain data, as Python and torch write them; others are refused, and cost little."""

from __future__ import annotations

import io
import os
import pickle
import resource
import subprocess
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ddoctor.reading import plain_pickle


def loads(raw: bytes) -> Any:
    return plain_pickle.load(io.BytesIO(raw))


SHARED = [1, 2, 3]
PLAIN = {
    "numbers": [0, 1, 255, 256, 65_535, 65_536, -1, -(2**31), 2**31, 2**47, -(2**63), 2**63, 0.5],
    "texts": ["", "a", "ä" * 300, "\N{SNOWMAN}" * 70_000],
    "constants": [None, True, False],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((1,), [])],
    "nested": {"a": {"b": [{"c": ({},)}]}},
    "many": {str(number): number for number in range(1_500)},
    "shared": [SHARED] * 300,
    "large": [letter * 900_000 for letter in "abcdef"],
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_it_reads_what_python_writes(protocol: int) -> None:
    found = loads(pickle.dumps(PLAIN, protocol=protocol))
    assert found == PLAIN
    assert found["shared"][0] is found["shared"][299]


def test_it_reads_what_torch_writes_in_cpp() -> None:
    # A container is named after it is filled, and a text where it first occurs.
    text = b"X\x06\0\0\0framesq\0"
    frames = b"](}(h\0K\x07uq\x01h\x01\x85e"
    raw = b"\x80\x02}(" + text + frames + b"X\x01\0\0\0aq\x02J\xff\xff\xff\xffu."
    found = {"frames": [{"frames": 7}, ({"frames": 7},)], "a": -1}
    assert loads(raw) == pickle.loads(raw) == found


class Call:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "value", [Call(), OrderedDict(a=1), {1, 2}, os.path.join, object, Path("x"), 1j]
)
def test_nothing_is_built_or_called(
    value: object, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="more than plain data"):
        loads(pickle.dumps([value], protocol=protocol))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\x04",
        b".",
        b"u.",
        b"]e.",
        b"h\x07.",
        b"J\0",
        b"X\xff\xff\xff\xffa.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa.",
        b"}]Ns.",
        b"}N\x85" + b"\x85" * 10**6 + b"Ns.",
        b"}(X\x01\0\0\0au.",
        b"\x8a\xff" + b"\x01" * 255 + b".",
        b"NNa.",
    ],
)
def test_damage_is_told(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"pickle|number|key|text"):
        loads(raw)


def test_random_changes_raise_nothing_else() -> None:
    random = Random(1)
    sound = pickle.dumps({**PLAIN, "texts": ["a"], "large": []}, protocol=4)
    for _ in range(1_000):
        raw = bytearray(sound)
        for _ in range(random.randint(1, 5)):
            raw[random.randrange(len(raw))] = random.randrange(256)
        with suppress(ValueError):
            loads(bytes(raw[: random.randint(1, len(raw))]))


BOMBS = {
    "lists": b"]",
    "dicts": b"}X\0\0\0\0Ns",
    "references": b"h\0",
    "names": b"\x94",
    "marks": b"(",
    "tuples": b"N\x85",
    "numbers": b"G\0\0\0\0\0\0\0\0",
    "texts": b"\x8c\x02ab",
}
TRY = """
import io, sys
from pathlib import Path
from ddoctor.reading import plain_pickle
unit, most = bytes.fromhex(sys.argv[1]), 64 * 2**20
plain_pickle.MOST_HELD = most
try:
    plain_pickle.load(io.BytesIO(b"\\x80\\x04]\\x94" + unit * (32 * 2**20 // len(unit))))
except ValueError as error:
    # The peak of the process itself; that of getrusage begins with its parent's.
    rows = Path("/proc/self/status").read_text().splitlines()
    print(next(int(row.split()[1]) // 1024 for row in rows if row.startswith("VmHWM")), error)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_stops_at_the_limit(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRY, BOMBS[name].hex()], capture_output=True, text=True, check=True
    )
    memory, _, why = done.stdout.partition(" ")
    assert "take more than 64 MiB of memory" in why
    # Of Python 40, of the input twice 32, of the objects 64, and a part of that for malloc.
    assert int(memory) < 300


def test_the_number_of_opcodes_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MOST_STEPS", 1_000)
    with pytest.raises(ValueError, match="more than 1000 opcodes"):
        loads(b"\x80\x04" * 1_000 + b"N.")


def test_a_number_in_a_name_asks_for_no_table() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert loads(b"\x80\x02}r\xff\xff\xff\xff.") == {}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
