"""The client of torch's TCPStore that does without torch, with torch's own store and client."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ddoctor.cluster import store as cluster_store
from ddoctor.cluster.store import StoreLost, connect
from ddoctor.cluster.tcp_store import HEADER, TcpStore, spoken
from ddoctor.cluster.torch_store import TorchStore

HERE = "127.0.0.1"
SERVE = f"""
import time
from torch.distributed import TCPStore
store = TCPStore("{HERE}", 0, None, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(300)
"""


@pytest.fixture(params=[True, False], ids=["libuv", "poll"])
def theirs(request: pytest.FixtureRequest) -> Any:
    """A store of torch's, with either of its two servers."""
    limit = timedelta(seconds=10)
    return TCPStore(HERE, 0, None, True, limit, wait_for_workers=False, use_libuv=request.param)


@pytest.fixture
def ours(theirs: Any) -> TcpStore:
    return TcpStore(HERE, theirs.port, 10.0)


def test_both_clients_see_the_same(theirs: Any, ours: TcpStore) -> None:
    ours.set("a/ü", "one ü")
    theirs.set("b", "two")
    assert theirs.get("a/ü").decode() == "one ü"
    assert ours.get(["b", "none", "a/ü"]) == {"b": b"two", "a/ü": "one ü".encode()}
    ours.set("a/ü", "")
    assert ours.get(["a/ü"]) == {"a/ü": b""}
    assert [ours.add("n", 2), theirs.add("n", -5), ours.add("n", 0)] == [2, -3, -3]
    assert theirs.get("n") == b"-3"
    assert ours.get([]) == {}


def test_setting_and_getting_in_one_message(theirs: Any, ours: TcpStore) -> None:
    client = TorchStore(HERE, theirs.port, 10.0)
    clients: tuple[TcpStore | TorchStore, ...] = (ours, ours, client)
    for number, one in enumerate(clients):
        own = f"own-{number}".encode()
        assert one.exchange("own", own.decode(), ["own", "none"]) == {"own": own}
        assert one.exchange("own", own.decode() + "!", ["own"]) == {"own": own + b"!"}


def test_many_keys_and_a_large_value(theirs: Any, ours: TcpStore) -> None:
    keys = [f"rank/{number}" for number in range(5000)]
    for key in keys[::2]:
        theirs.set(key, key)
    # torch does not wait for the answer to a set; that of a get comes after all of them.
    theirs.get(keys[-2])
    assert ours.get(keys) == {key: key.encode() for key in keys[::2]}
    for key in keys[1::2]:
        theirs.set(key, key)
    theirs.get(keys[-1])
    assert ours.get(keys) == {key: key.encode() for key in keys}
    large = "x" * 4 * 2**20
    ours.set("large", large)
    assert ours.get(["large"]) == {"large": large.encode()}


def test_threads_share_a_connection(ours: TcpStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda number: ours.add("n", 1), range(400)))
    assert sorted(sums) == list(range(1, 401))


@pytest.fixture
def header() -> str:
    return (Path(torch.__file__).parent / HEADER).read_text()


def kept(folder: Path, text: str) -> Path:
    path = folder / HEADER
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return folder


def test_the_protocol_is_that_of_the_installed_torch() -> None:
    assert spoken()


def test_what_is_appended_to_the_protocol_changes_nothing(tmp_path: Path, header: str) -> None:
    assert spoken(kept(tmp_path, header.replace("LIST_KEYS,", "LIST_KEYS,\n  ANOTHER,")))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("GETNUMKEYS,", "ANOTHER,\n  GETNUMKEYS,"),
        ("0x3C85F7CE", "0x3C85F7CF"),
        ("READY, NOT_READY", "NOT_READY, READY"),
        ("enum class QueryType", "enum class Requests"),
    ],
)
def test_another_protocol_is_not_spoken(
    tmp_path: Path, header: str, before: str, after: str
) -> None:
    assert before in header
    assert not spoken(kept(tmp_path, header.replace(before, after)))


def test_a_torch_without_its_header(tmp_path: Path) -> None:
    assert not spoken(tmp_path)


@contextmanager
def answering(said: bytes) -> Iterator[int]:
    """A program that says this to its client, and closes the connection."""

    def serve() -> None:
        with server.accept()[0] as client:
            client.recv(1000)
            client.sendall(said)

    with socket.create_server((HERE, 0)) as server:
        thread = Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("said", [b"", b"?", b"HTTP/1.1 400 Bad Request\r\n"])
def test_another_program_is_told_from_a_store(said: bytes) -> None:
    with answering(said) as port, pytest.raises(StoreLost, match=r"connection|another program"):
        connect(HERE, port, host_it=False, limit=0.0)


@pytest.mark.parametrize("known", [True, False])
def test_where_the_protocol_is_unknown_torch_speaks_it(
    theirs: Any, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(cluster_store, "spoken", lambda: known)
    store = connect(HERE, theirs.port, host_it=False, limit=5.0, prefix="p")
    assert isinstance(store._store, TcpStore if known else TorchStore)
    store.set("a", 1)
    assert theirs.get("ddoctor/p/a") == b"1"
    assert store.get_all({0: "a", 1: "b"}, int) == {0: 1}
    assert (store.add("n"), store.add("n")) == (1, 2)


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A store in a process of its own, and its port."""
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True) as one:
        try:
            assert one.stdout is not None
            yield one, int(one.stdout.readline())
        finally:
            one.kill()


def test_a_late_answer_is_none_to_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (process, port):
        store = connect(HERE, port, host_it=False, limit=5.0)
        store.set("a", 1)
        store.set("b", 2)
        process.send_signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        monkeypatch.setattr(cluster_store, "ANSWER_SECONDS", 0.2)
        with pytest.raises(StoreLost, match="does not answer: 0 s of silence"):
            store.get("a", int)
        process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(cluster_store, "ANSWER_SECONDS", 20.0)
        assert store.get("b", int) == 2


def test_a_store_that_ends_is_told_at_once() -> None:
    with served() as (process, port):
        store = connect(HERE, port, host_it=False, limit=5.0)
        assert store.add("n") == 1
        process.kill()
        process.wait()
        with pytest.raises(StoreLost, match=f"the store at {HERE}:{port} does not answer"):
            store.add("n")
        with pytest.raises(StoreLost, match="cannot reach") as caught:
            connect(HERE, port, host_it=False, limit=0.0)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("seconds", ["60", "0.05"])
def test_a_small_address_space(seconds: str) -> None:
    """An import that fails for lack of room, and one that does not end."""
    room = 300 if seconds == "60" else 8_000
    tries = (
        "import resource, ddoctor.cluster.torch_store as store\n"
        f"store.IMPORT_SECONDS = {seconds}\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({room} << 20, {room} << 20))\n"
        "try:\n    store.import_torch()\nexcept OSError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", tries], capture_output=True, text=True)
    assert ran.stdout == f"no room for torch (ulimit -v {room << 10})\n", ran.stderr
