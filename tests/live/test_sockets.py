"""What waits to be sent, or to be read, in the real sockets of two hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from ddoctor.evidence.live import LiveLink
from tests.cluster.conftest import outcome, switched

RECEIVER = """
import os, socket, sys, time
import msgspec
from ddoctor.live.sockets import Sockets

listening = socket.create_server(("", 5000))
print("ready", flush=True)
connection, _ = listening.accept()
sockets = Sockets([os.getpid()])
if sys.argv[1] == "takes":
    while connection.recv(1 << 20):
        pass
    sockets.sample()
else:
    while not connection.recv(1, socket.MSG_PEEK):
        pass
    for _ in range(5):
        sockets.sample()
print(msgspec.json.encode(sockets.summary()).decode(), flush=True)
time.sleep(1_000)
"""
SENDER = """
import os, socket, sys, time
import msgspec
from ddoctor.live.sockets import Sockets

connection = socket.create_connection((sys.argv[1], 5000))
beside = socket.create_server(("127.0.0.1", 0))
own = socket.create_connection(beside.getsockname())
sockets = Sockets([os.getpid()])
connection.setblocking(False)


def send():
    try:
        return connection.send(bytes(1 << 26))
    except BlockingIOError:
        return 0


# Until the other end takes no more.
while sys.argv[2] == "waits" and (send() or send()):
    time.sleep(0.2)
for _ in range(5):
    send()
    if sys.argv[2] == "takes":
        connection.setblocking(True)
        connection.send(b"one")
        time.sleep(0.2)
        connection.setblocking(False)
    sockets.sample()
print(msgspec.json.encode(sockets.summary()).decode())
"""


@pytest.mark.parametrize(("other", "queued"), [("takes", 0.0), ("waits", 1.0)])
def test_what_the_other_end_does_not_take_is_queued(
    tmp_path: Path, other: str, queued: float
) -> None:
    with switched(2, tmp_path) as hosts:
        here, there = hosts.nodes
        receiver = hosts.start(there, sys.executable, "-c", RECEIVER, other)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        sent = outcome(hosts.start(here, sys.executable, "-c", SENDER, there.address, other))
        received = receiver.stdout.readline()
        receiver.kill()
        receiver.communicate()
    assert sent.exit_code == 0, sent.stderr
    (link,) = msgspec.json.decode(sent.stdout, type=tuple[LiveLink, ...])
    assert (link.local, link.remote, link.interface) == (here.address, there.address, "eth0")
    assert link.queued == queued
    back = msgspec.json.decode(received, type=tuple[LiveLink, ...])
    # Who has closed the connection has none any more.
    assert [(one.local, one.remote, one.unread) for one in back] == (
        [] if other == "takes" else [(there.address, here.address, 1.0)]
    )
    assert link.sent is not None
    assert link.sent > 0
    # drivers/net/veth.c
    assert link.speed == 10_000
