"""One rank of `… -m ddoctor.probe run`: start the script, watch it, and report on rank 0."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddoctor.cluster.launcher_environment import LaunchedRank, dialect, leave_it_to_rank_0, place
from ddoctor.errors import DoctorError
from ddoctor.options import BEFORE_A_COMMAND, parse
from ddoctor.probing.sweep_request import SweepRequest, sizes
from ddoctor.probing.world import usable_gpus
from ddoctor.recorder import script
from ddoctor.training.child import FORWARDED, Child
from ddoctor.training.messages import TurnOrder
from ddoctor.training.options import RunOptions, refuse_options

if TYPE_CHECKING:
    from ddoctor.cluster.store import ClusterStore
    from ddoctor.report.output import Outputs
    from ddoctor.training.follow import NewChild

PROGRAM = "torchrun … -m ddoctor.probe run"
JOIN_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class RankOptions(RunOptions):
    """Record a training script and report where its time goes."""

    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT", help="Training script, or -m and a module; then its arguments."
        ),
    ] = None


Asked = tuple[RankOptions, tuple[str, ...], "Outputs | None"]


def main(words: Sequence[str], given: Sequence[str]) -> int:
    """The exit code of the script if it failed; otherwise on rank 0 that of the report.

    ``given``: arguments that the launcher adds to those of the script.

    Raises:
        DoctorError: an option is wrong, or the ranks cannot reach each other.
    """
    mine = _place()
    asked = _asked(words, given, mine)
    if asked is None:
        leave_it_to_rank_0()
        return 2
    options, command, outputs = asked
    host = socket.gethostname()
    current: list[Child] = []

    def new_child(turn: int, order: TurnOrder) -> Child:
        child = Child(command, mine, turn=turn, order=order, host=host)
        current[:] = [child]
        return child

    child = new_child(0, TurnOrder())
    for number in FORWARDED:
        signal.signal(number, lambda number, frame: current[0].forward(number))
    try:
        store = _connect(mine)
        if mine.rank or outputs is None:
            return _follow(store, child, new_child)
        from ddoctor.cluster.store import StoreLost
        from ddoctor.training.report import lead

        try:
            code = lead(store, child, new_child, options, command, outputs)
        except StoreLost as error:
            raise DoctorError(f"rank 0: {error} (has the launcher been killed?)") from error
    finally:
        current[0].end(look=False)
    return _like(code)


def _place() -> LaunchedRank:
    if dialect(os.environ) is not None:
        return place()
    return LaunchedRank(
        rank=0,
        world_size=1,
        local_rank=0,
        local_size=1,
        address="localhost",
        port=0,
        hosts_store=True,
        run="",
    )


def _asked(words: Sequence[str], given: Sequence[str], mine: LaunchedRank) -> Asked | None:
    """The options, the script and the files; None: another rank reports what is wrong."""
    try:
        options = parse(RankOptions, words, PROGRAM, quiet=mine.rank > 0, settings=BEFORE_A_COMMAND)
        if options is None:
            sys.exit(0)
        options.check()
        command = _script(options.script or [], given)
        # The files are on the host of rank 0: its other ranks find the same mistake.
        outputs = options.outputs() if mine.rank == mine.local_rank else None
        if options.memory:
            _check_memory(options.device_memory, mine)
    except DoctorError:
        if mine.rank:
            return None
        raise
    try:
        script.check(command)
    except script.Failed as error:
        if mine.local_rank:
            return None
        raise DoctorError(str(error)) from error
    return options, command, outputs


def _script(words: list[str], given: Sequence[str]) -> tuple[str, ...]:
    """The script, or ``-m`` and a module, then its arguments, those of the launcher first."""
    refuse_options(words)
    begin = 2 if words[:1] == ["-m"] else 1
    if len(words) < begin:
        raise DoctorError("no script to run: … -m ddoctor.probe run train.py")
    return (*words[:begin], *given, *words[begin:])


def _check_memory(sizes_given: str | None, mine: LaunchedRank) -> None:
    limits = SweepRequest(device_memory=sizes(sizes_given))
    if limits.memory_of(mine.local_rank, mine.local_size) is None and not usable_gpus():
        raise DoctorError(
            "--memory: there is no GPU to measure: give the memory of one: --device-memory 24GiB"
        )


def _connect(mine: LaunchedRank) -> ClusterStore:
    from ddoctor.cluster.store import StoreLost, connect

    # Without a store of the launcher, the script itself opens one at MASTER_PORT.
    own = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    port = mine.port + 1 if own and mine.port else mine.port
    try:
        return connect(
            mine.address,
            port,
            host_it=mine.hosts_store,
            limit=JOIN_SECONDS,
            prefix=f"run/{mine.run}",
        )
    except StoreLost as error:
        raise DoctorError(f"rank {mine.rank}: {error}") from error


def _follow(store: ClusterStore, child: Child, new_child: NewChild) -> int:
    from ddoctor.cluster.store import StoreLost
    from ddoctor.cluster.supervisor import CoordinatorLost
    from ddoctor.training.follow import follow

    try:
        return _like(follow(store, child, new_child) or 0)
    except (StoreLost, CoordinatorLost) as error:
        raise DoctorError(f"rank {child.mine.rank}: {error}") from error


def _like(code: int) -> int:
    """End as the script did: a signal that ended it ends this process, too."""
    if code >= 0:
        return code
    sys.stdout.flush()
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 1
