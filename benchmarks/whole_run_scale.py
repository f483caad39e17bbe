"""What `ddoctor run --steps all` costs rank 0's host in a run of 4,096 hosts with 8 ranks each.

One process is rank 0's: it has torch's store, and the real loop that follows all ranks. Others play
the relays of all hosts: the same client and messages over a connection each, in real time. Then one
host falls silent, and rank 0 has to name its ranks. Exit code 1: rank 0 takes 5 % of a core or
more, or names others.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any

from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.cluster.store import ClusterStore
from ddoctor.cluster.tcp_store import TcpStore
from ddoctor.cluster.torch_store import TorchStore, import_torch
from ddoctor.recorder.tape import COLLECTIVE
from ddoctor.training.child import SAMPLE_SECONDS
from ddoctor.training.events import Events
from ddoctor.training.lead import Watch
from ddoctor.training.messages import Now
from ddoctor.training.reporting import Followers, Slot, host_tick
from ddoctor.training.warm_up import MOST
from ddoctor.training.whole_run import WholeRun

HOSTS = 4096
RANKS_PER_HOST = 8
PLAYERS = 2
SECONDS = 40.0
BOUND = 0.05
HERE = "127.0.0.1"
STEP_SECONDS = 0.7
SELF = (sys.executable, "-m", "benchmarks.whole_run_scale")
# torch's store asks DNS for the name of each address that connects; without a network, it is quick.
ALONE = ("unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def main(hosts: int) -> int:
    """Follow a run of this number of hosts."""
    import_torch()
    server = TorchStore(HERE, 0, 30.0, host_it=True)
    world = hosts * RANKS_PER_HOST
    launched = LaunchedRank(rank=0, world_size=world, local_rank=0, local_size=RANKS_PER_HOST)
    store = ClusterStore(TcpStore(HERE, server.port, 30.0), HERE, server.port, ranks=world)
    followers = Followers(store, 0, host_tick(store, launched), channel="played")
    print(f"{hosts} hosts × {RANKS_PER_HOST} ranks, a report every {followers.tick:.1f} s")
    with store.beating(), _players(hosts, server.port, followers.tick) as players:
        child: Any = _Child(launched, players[-1])
        whole = WholeRun(child, followers, Events(None, "", 0), lambda run: (), (), None)
        child.watching = Watch(child, followers, MOST, inf, print, whole)
        child.watching.run()
    print(f"rank 0's process used {child.share:.2%} of a core")
    print(f"a host fell silent, and {child.found:.0f} s later: {child.watching.limit}")
    silent = range(world - RANKS_PER_HOST, world)
    return 0 if child.share < BOUND and [*child.watching.silent] == [*silent] else 1


class _Child:
    """Rank 0's script, which takes steps; and the measurement."""

    over = False
    interrupted_at = None

    def __init__(self, launched: LaunchedRank, last_player: subprocess.Popen[str]) -> None:
        self.launched, self._last_player = launched, last_player
        self.watching: Any = None
        self.share = self.found = 0.0
        self._began = self._used = self._silenced = 0.0

    @property
    def done(self) -> int:
        return int(time.monotonic() / STEP_SECONDS)

    def now(self) -> Now:
        return _now(0, over=self.over)

    def new_steps(self) -> list[tuple[int, float]]:
        return []

    def watch(self, tick: float, glance: object = None) -> None:
        """Wait; measure from the moment at which all ranks are known."""
        moment = time.monotonic()
        if not self._began and len(self.watching.nows) == self.launched.world_size:
            self._began, self._used = moment, time.process_time()
        elif self._began and not self._silenced and moment - self._began > SECONDS:
            self.share = (time.process_time() - self._used) / (moment - self._began)
            self._silenced = moment
            assert self._last_player.stdin is not None
            self._last_player.stdin.close()
        time.sleep(max(SAMPLE_SECONDS, tick))

    def end(self, *, sample: bool, tick: float = 0.0) -> None:
        self.found = time.monotonic() - self._silenced
        self.over = True


@contextmanager
def _players(hosts: int, port: int, tick: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that play the relays of all hosts, until rank 0 ends the run."""
    share = hosts // PLAYERS
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                subprocess.Popen(
                    [*SELF, str(port), str(tick), f"{one * share}-{(one + 1) * share}"],
                    stdin=subprocess.PIPE,
                    text=True,
                )
            )
            for one in range(PLAYERS)
        ]


def play(port: int, tick: float, hosts: range) -> None:
    """Report for these hosts as ``Relay`` does; the last one falls silent when stdin ends."""
    reporting = {}
    for host in hosts:
        store = ClusterStore(TcpStore(HERE, port, 30.0), HERE, port)
        reporting[host] = Slot(store, 0)
    end, last = False, hosts[-1]
    while True:
        for host, slot in reporting.items():
            ranks = range(host * RANKS_PER_HOST, (host + 1) * RANKS_PER_HOST)
            # Of rank 0, nothing is reported.
            nows = {rank: _now(rank, over=end) for rank in ranks if rank}
            ending = slot.exchange(nows).directive.end
        if end:
            return
        end = ending
        if last in reporting and select.select([sys.stdin], [], [], 0)[0]:
            del reporting[last]
        time.sleep(tick - time.time() % tick)


def _now(rank: int, *, over: bool = False) -> Now:
    moment = time.monotonic()
    return Now(
        steps=int(moment / STEP_SECONDS),
        phase=COLLECTIVE,
        age=moment % STEP_SECONDS,
        doing="all_reduce",
        busy=True,
        over=over,
        exit_code=0 if over else None,
        host=f"node-{rank // RANKS_PER_HOST:04}",
        pid=10_000 + rank,
        stopped=False,
    )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        play(int(sys.argv[1]), float(sys.argv[2]), range(*map(int, sys.argv[3].split("-"))))
    elif len(sys.argv) == 2:
        sys.exit(main(int(sys.argv[1])))
    else:
        sys.exit(subprocess.run([*ALONE, *SELF, str(HOSTS)]).returncode)
