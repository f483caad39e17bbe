"""NCCL's RAS service: its part is played over a real connection, in the words of its own source."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from ddoctor.live import ras
from ddoctor.live.rank_processes import RankProcess
from tests.conftest import free_port

# src/ras/client_support.cc of NCCL 2.28
STATUS = """NCCL version 2.28.3 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  MISMATCH

Errors
======

{errors}Warnings
========

{warnings}"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

"""
MISMATCH = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 41 -- GPU 0 managed by process 3483 on node 10.0.0.1
  Rank 1 has launched up to operation 40 -- GPU 1 managed by process 3484 on node 10.0.0.1

"""
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer one who asks; the address."""
    with ExitStack() as cleanup:

        def run(status: str = "", hello: str = "SERVER PROTOCOL 2\n") -> str:
            listener = cleanup.enter_context(socket.create_server(("127.0.0.1", 0)))

            def answer() -> None:
                connection, _ = listener.accept()
                answers = {
                    "client protocol 2": hello,
                    "timeout 3": "OK\n",
                    "verbose status": status,
                }
                with connection, connection.makefile() as lines:
                    for line in lines:
                        connection.sendall(answers[line.strip()].encode())
                        if line.strip() == "verbose status":
                            return

            thread = threading.Thread(target=answer)
            thread.start()
            cleanup.callback(thread.join, 10)
            return f"127.0.0.1:{listener.getsockname()[1]}"

        yield run


def rank_process(address: str, process: psutil.Process | None = None) -> RankProcess:
    return RankProcess(
        process=process or psutil.Process(),
        rank=0,
        world=2,
        command=("train.py",),
        environment={ras.ADDRESS: address} if address else {},
    )


def test_what_it_warns_of(serve: Serve) -> None:
    told = ras.trouble([rank_process(serve(STATUS.format(errors=DEAD, warnings=MISMATCH)))])
    assert told == tuple(line for line in (DEAD + MISMATCH).splitlines() if line)


def test_quiet_on_a_sound_job(serve: Serve) -> None:
    assert ras.trouble([rank_process(serve(STATUS.format(errors="", warnings="")))]) == ()


def test_quiet_where_another_job_answers(serve: Serve) -> None:
    """The ranks of all jobs on a host listen at the same address."""
    address = serve(STATUS.format(errors=DEAD, warnings=""))
    with psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert ras.trouble([rank_process(address, other)]) == ()
        other.kill()


def test_quiet_where_somebody_else_listens(serve: Serve) -> None:
    assert ras.trouble([rank_process(serve(hello="220 mail.example.org ESMTP\n"))]) == ()


@pytest.mark.parametrize("address", ["", "nonsense", f"127.0.0.1:{free_port()}"])
def test_quiet_where_it_is_not_there(address: str) -> None:
    assert ras.trouble([rank_process(address)]) == ()
