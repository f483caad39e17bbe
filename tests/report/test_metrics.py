from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.report.metrics import Metrics
from tests.conftest import free_port
from tests.live_look import in_reduction, look, moving, standing
from tests.training_run import user

STUCK = look(in_reduction(0), standing(1, "rest", user(30, "wait_for_file(path)", "load")))


def test_the_last_look_is_served() -> None:
    port = free_port()
    metrics = Metrics(str(port))
    for live in (look(moving(0), moving(1)), STUCK):
        evidence = Evidence([live])
        metrics.show(engine.examine(evidence, "attach"), evidence)
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert 'ddoctor_stands{rank="1"} 1.0' in lines
    assert 'ddoctor_phase_share{phase="waiting",rank="0"} 1.0' in lines
    assert 'ddoctor_main_thread_cpu{rank="0"} 0.0' in lines
    found = 'ddoctor_finding{cause="rank-stuck-outside-collective",ranks="1",severity="error"} 1.0'
    assert found in lines


def test_nothing_before_the_first_look() -> None:
    port = free_port()
    Metrics(f"127.0.0.1:{port}")
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == []


@pytest.mark.parametrize("where", ["", "http", "0", "65536", "localhost:", "1.5"])
def test_no_port(where: str) -> None:
    with pytest.raises(DoctorError, match="no port from 1 to 65535"):
        Metrics(where)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(DoctorError, match="in use"):
            Metrics(str(one.getsockname()[1]))
