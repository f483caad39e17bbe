"""What is too much is refused before anything is made of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle, limits, redaction
from ddoctor.evidence.probes import WrongValue
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.software import Software

HEAD = b'{"schema": 1, "ddoctor": "0", "created": "", "sections": '


@pytest.mark.parametrize("lists", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000 + b"}"])
def test_lists_within_lists(tmp_path: Path, lists: bytes) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(HEAD + lists)
    with pytest.raises(DoctorError, match=r"b\.json is not a whole|b\.json is a damaged"):
        bundle.read(path)


def test_more_values_than_a_cluster_has(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(HEAD + b"[" + b"0," * limits.MOST_VALUES + b"0]}")
    with pytest.raises(DoctorError, match="too large for a bundle"):
        bundle.read(path)


def test_more_bytes_than_a_cluster_has(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    with path.open("wb") as file:  # a hole, which takes no disk
        file.truncate(limits.MOST_BYTES + 1)
    with pytest.raises(DoctorError, match="too large for a bundle"):
        bundle.read(path)


@pytest.mark.parametrize(
    "word",
    [
        *("a_", "TOKEN_", "auth-key.", "--a ", "://a", "-----BEGIN "),
        *("token=", "token ", "api key ", "://a:", "\\", "token: str | None ", '"=', "Bearer "),
    ],
)
def test_the_time_for_secrets_does_not_grow_with_the_square(word: str) -> None:
    text = (word * limits.LONGEST_TEXT)[: limits.LONGEST_TEXT]
    before = time.process_time()
    redaction.text(text)
    assert time.process_time() - before < 5  # a square took more than a minute


def test_a_path_that_is_no_utf_8_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    bundle.write(path, Evidence([Software(host="a", python="/home/\udcff/bin/python")]))
    (told,) = bundle.read(path).all(Software)
    assert told.python == r"/home/\xff/bin/python"


def test_only_named_fields_may_be_negative() -> None:
    assert WrongValue.signed == {"expected", "got"}
    assert "bytes" not in WrongValue.signed
