"""The frame of the collectors: each is bounded, and its failure is its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread, current_thread

import psutil
import pytest

from ddoctor import collect
from ddoctor.collect import programs
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


def outcomes(*collectors: Callable[[], Section], limit: float = 30.0) -> list[Section | Absence]:
    return list(collect.collect(lambda label: None, collectors, limit=limit))


def test_sections_name_their_host_and_the_blind_say_why() -> None:
    seen, unseen, failed = outcomes(sound, blind, broken)
    assert isinstance(seen, Memory)
    assert seen.host
    assert unseen == Absence(section="clock", why="there is no clock here")
    assert failed == Absence(
        section="shared-memory", why="ZeroDivisionError: of no use", crashed=True
    )


def test_one_that_hangs_does_not_hold_up_the_others() -> None:
    absent, seen = outcomes(hung, sound, limit=0.5)
    assert isinstance(absent, Absence)
    assert absent.crashed
    assert "no answer" in absent.why
    assert isinstance(seen, Memory)


def waiting() -> Clock:
    programs.run(["sleep", "600"], seconds=600.0)
    raise AssertionError


def sleepers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if one.name() == "sleep"]


def test_what_a_collector_runs_does_not_outlive_the_collecting() -> None:
    def interrupt(label: str) -> None:
        while not sleepers():
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(collect.collect(interrupt, (waiting,)))
    assert sleepers() == []
    outcomes(waiting, limit=0.5)
    assert sleepers() == []


def test_what_has_not_begun_starts_nothing_after_the_end() -> None:
    refused = []

    def late() -> None:
        programs.end([current_thread()])
        try:
            programs.run(["sleep", "600"], seconds=600.0)
        except OSError as error:
            refused.append(str(error))

    thread = Thread(target=late)
    thread.start()
    thread.join()
    assert refused == ["interrupted"]


def test_this_machine_is_seen_without_a_crash() -> None:
    labels: list[str] = []
    for outcome in collect.collect(labels.append):
        if isinstance(outcome, Absence):
            assert not outcome.crashed, outcome
    assert len(labels) == len(set(labels)) >= 10


def test_what_is_not_utf_8_is_replaced_and_not_lost() -> None:
    """In a process of its own: a variable with a Latin-1 byte, as old scripts set them."""
    script = (
        "from ddoctor.collect import collect; from ddoctor.evidence import bundle;"
        "from ddoctor.evidence.section import Evidence, Section; from pathlib import Path;"
        "seen = [o for o in collect(lambda label: None) if isinstance(o, Section)];"
        "bundle.write(Path('/dev/stdout'), Evidence(seen))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environb | {b"NCCL_SOCKET_IFNAME": b"caf\xe9"},
        capture_output=True,
    )
    assert run.returncode == 0, run.stderr
    assert "caf\N{REPLACEMENT CHARACTER}" in run.stdout.decode()
