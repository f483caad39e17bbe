"""The store over which the ranks' supervisors talk."""

from __future__ import annotations

import socket

import pytest

from ddoctor.cluster.store import StoreLost, connect


def test_a_port_that_takes_connections_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StoreLost, match=f"127.0.0.1:{port}: timed out"):
            connect("127.0.0.1", port, host_it=False, limit=0.0)


def test_a_port_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(StoreLost, match=f"cannot reach the store at 127.0.0.1:{port}"):
        connect("127.0.0.1", port, host_it=False, limit=0.0)


def test_what_was_told_is_heard() -> None:
    first = connect("127.0.0.1", 0, host_it=True, limit=5.0)
    second = connect("127.0.0.1", first.port, host_it=False, limit=5.0)
    first.set("a", (1, 2))
    assert second.get("a", tuple[int, ...]) == (1, 2)
    assert second.get("b", int) is None
    assert second.get_all({"b": "b", "a": "a"}, tuple[int, ...]) == {"a": (1, 2)}
    assert (first.add("calls"), second.add("calls")) == (1, 2)
