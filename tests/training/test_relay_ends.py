"""`ddoctor run --steps all`: a relay that is lost costs the report of its own rank alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ddoctor.evidence import bundle
from ddoctor.evidence.run_history import RunHistory
from tests.conftest import free_port
from tests.training.conftest import LIMIT_SECONDS, UNDER, MakeTraining, Training
from tests.training.test_lost_ranks import LOST_SECONDS, SCRIPT, Ranks, begun, ended, scripts

LONG = "100000"
RELAY = 1

pytestmark = pytest.mark.ward


def relays() -> int:
    """The relays of this host."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    # A relay and its connections have the name; only the relay listens (state 01).
    return sum("@ddoctor/" in line and line.split()[5] == "01" for line in lines)


@contextmanager
def three_ranks(training: Training, *options: str) -> Iterator[Ranks]:
    """Three ranks on a host, of which rank 1 is the relay."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    command = (sys.executable, *UNDER, "--steps=all", *options, str(training.script), LONG)
    before = relays()
    with ExitStack() as stack:

        def start(rank: int) -> None:
            of_rank = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 3, **rendezvous}
            words = (f"{name}={value}" for name, value in of_rank.items())
            ranks.append(stack.enter_context(training.started("env", *words, *command)))

        ranks: Ranks = []
        start(0)
        start(RELAY)
        deadline = time.monotonic() + LIMIT_SECONDS
        while relays() == before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        start(2)
        begun(ranks)
        time.sleep(4)
        yield ranks


def told(training: Training, *, frozen: bool) -> None:
    """Lose the relay; the report names its rank alone."""
    report, evidence = (training.script.parent / name for name in ("report.json", "bundle.json"))
    with three_ranks(training, f"--json={report}", f"--bundle={evidence}") as ranks:
        lost = scripts(ranks[RELAY])
        began = time.monotonic()
        if frozen:
            for process in lost:
                process.suspend()
        else:
            ranks[RELAY].kill()
        ended(ranks[:1])
        assert time.monotonic() - began < LOST_SECONDS
        if frozen:
            for process in lost:
                process.resume()
    first = json.loads(report.read_text())["findings"][0]
    assert first["where"]["ranks"] == [RELAY], first
    (history,) = bundle.read(evidence).all(RunHistory)
    assert [one.rank for one in history.ranks] == [0, 2]


def test_a_relay_that_is_killed(training: MakeTraining) -> None:
    told(training(SCRIPT), frozen=False)


def test_a_relay_that_is_stopped(training: MakeTraining) -> None:
    told(training(SCRIPT), frozen=True)
