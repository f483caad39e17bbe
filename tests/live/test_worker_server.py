"""torch's own control socket, asked for its flight records."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import _WorkerServer

from ddoctor.live import control_socket


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In a folder whose path is longer than an address may be."""
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    server = _WorkerServer("worker0")
    # torch never ends the shutdown of one that has not begun to serve.
    assert list(control_socket.asked(folder / "worker0", os.getpid()))
    yield folder / "worker0"
    server.shutdown()


def test_its_records(served: Path) -> None:
    (told,) = control_socket.asked(served, os.getpid())
    assert json.loads(told)["version"]


def test_the_socket_of_another_rank(served: Path) -> None:
    assert list(control_socket.asked(served, os.getpid() + 1)) == []


def test_nobody_serves(tmp_path: Path) -> None:
    assert list(control_socket.asked(tmp_path / "worker0", os.getpid())) == []
    (tmp_path / "worker0").write_text("")
    assert list(control_socket.asked(tmp_path / "worker0", os.getpid())) == []


def test_who_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind("worker0")
        silent.listen()
        began = time.monotonic()
        assert list(control_socket.asked(tmp_path / "worker0", os.getpid())) == []
        assert time.monotonic() - began < 3 * control_socket.SERVER_SECONDS
