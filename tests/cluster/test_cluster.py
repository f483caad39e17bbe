"""The hosts of the cluster tests are what they claim to be."""

from __future__ import annotations

import sys

from tests.cluster.conftest import MakeCluster

LOOK = """
import socket, sys
ip = socket.gethostbyname
own = socket.gethostname()
print(own, sys.argv[1], ip(own), ip("node-0"), ip("node-1"))
with socket.socket() as listener:
    listener.bind((ip(own), 4000))
    listener.listen()
    other = "node-1" if own == "node-0" else "node-0"
    for _ in range(200):
        try:
            socket.create_connection((other, 4000), timeout=1).close()
            break
        except OSError:
            import time
            time.sleep(0.05)
    print("heard", listener.accept()[1][0])
"""


def test_hosts_have_names_and_hear_one_another(cluster: MakeCluster) -> None:
    made = cluster(2)
    first, second = made.run(sys.executable, "-c", LOOK, "{node}")
    assert first.stdout.splitlines() == [
        "node-0 0 10.77.0.1 10.77.0.1 10.77.0.2",
        "heard 10.77.0.2",
    ]
    assert second.stdout.splitlines() == [
        "node-1 1 10.77.0.2 10.77.0.1 10.77.0.2",
        "heard 10.77.0.1",
    ]
