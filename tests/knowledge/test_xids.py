"""The table of Xids: complete where it matters, and without contradictions."""

from __future__ import annotations

import pytest

from ddoctor import knowledge
from ddoctor.evidence.known_hardware import KnownXids, Xid

KNOWN = knowledge.load(KnownXids)


def test_each_code_is_there_once() -> None:
    codes = [xid.code for xid in KNOWN.xids]
    assert codes == sorted(set(codes))


@pytest.mark.parametrize("xid", KNOWN.xids, ids=lambda xid: str(xid.code))
def test_a_row_is_sourced_and_plain(xid: Xid) -> None:
    assert xid.source.startswith("https://docs.nvidia.com/deploy/xid-errors/")
    assert xid.title == xid.title.strip()
    assert 0 < xid.code < 200
    assert len(xid.title) < 70


def test_an_application_s_fault_never_asks_for_a_reset() -> None:
    for xid in KNOWN.xids:
        if xid.blames in ("application", "information"):
            assert xid.remedy in ("restart-run", "none"), xid


@pytest.mark.parametrize(
    ("code", "blames"),
    [(79, "board"), (48, "memory"), (95, "memory"), (74, "nvlink"), (31, "application")],
)
def test_the_codes_that_everybody_meets(code: int, blames: str) -> None:
    xid = KNOWN.get(code)
    assert xid is not None
    assert xid.blames == blames


def test_an_unknown_code_is_not_guessed() -> None:
    assert KNOWN.get(12345) is None
