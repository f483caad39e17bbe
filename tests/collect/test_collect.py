"""The frame of the collectors: each is bounded, and its failure is its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from ddoctor import collect
from ddoctor.evidence.host import Clock, Memory, SharedMemory
from ddoctor.evidence.section import Absence, Section


def sound() -> Memory:
    return Memory(total=2, available=1)


def blind() -> Clock:
    raise collect.CannotSee("there is no clock here")


def broken() -> SharedMemory:
    raise ZeroDivisionError("of no use")


def hung() -> Clock:
    time.sleep(600)
    raise AssertionError


def outcomes(
    monkeypatch: pytest.MonkeyPatch, *collectors: Callable[[], Section]
) -> list[Section | Absence]:
    def those() -> Iterator[Callable[[], Section]]:
        yield from collectors

    monkeypatch.setattr(collect, "collectors", those)
    return list(collect.collect(lambda label: None))


def test_sections_name_their_host_and_the_blind_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, unseen, failed = outcomes(monkeypatch, sound, blind, broken)
    assert isinstance(seen, Memory)
    assert seen.host
    assert unseen == Absence(section="clock", why="there is no clock here")
    assert failed == Absence(
        section="shared-memory", why="ZeroDivisionError: of no use", crashed=True
    )


def test_one_that_hangs_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "LIMIT_SECONDS", 0.5)
    absent, seen = outcomes(monkeypatch, hung, sound)
    assert isinstance(absent, Absence)
    assert absent.crashed
    assert "no answer" in absent.why
    assert isinstance(seen, Memory)


def test_this_machine_is_seen_without_a_crash() -> None:
    labels = []
    for outcome in collect.collect(labels.append):
        if isinstance(outcome, Absence):
            assert not outcome.crashed, outcome
    assert len(labels) == len(set(labels)) >= 10
