"""One rank of `… -m ddoctor.probe run`: start the script, watch it, and report on rank 0."""

from __future__ import annotations

import os
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from ddoctor.cluster.launcher_environment import LaunchedRank, dialect, leave_it_to_rank_0, place
from ddoctor.errors import DoctorError
from ddoctor.probing.sweep_request import SweepRequest, sizes
from ddoctor.probing.world import usable_gpus
from ddoctor.recorder import script
from ddoctor.training import options
from ddoctor.training.child import FORWARDED, Child
from ddoctor.training.messages import TurnOrder

if TYPE_CHECKING:
    from ddoctor.cluster.store import ClusterStore
    from ddoctor.report.output import Outputs
    from ddoctor.training.follow import NewChild

JOIN_SECONDS = 300.0


def main(words: Sequence[str]) -> int:
    """The exit code of the script where it failed; else on rank 0 that of the report.

    Raises:
        DoctorError: the words make no sense, or the ranks cannot reach one another.
    """
    mine = _place()
    asked = _asked(words, mine)
    if asked is None:
        leave_it_to_rank_0()
        return 2
    arguments, command, outputs = asked
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
        fleet = _connect(mine)
        if mine.rank or outputs is None:
            return _follow(fleet, child, new_child)
        from ddoctor.cluster.store import StoreLost
        from ddoctor.training.report import lead

        try:
            code = lead(fleet, child, new_child, arguments, command, outputs)
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


def _asked(
    words: Sequence[str], mine: LaunchedRank
) -> tuple[Namespace, tuple[str, ...], Outputs | None] | None:
    """The options, the words of the script, and where the report goes; None: they make no sense,
    and another rank says so."""
    try:
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere if mine.rank else sys.stdout),
        ):
            arguments, command = options.parse(words)
        # The files are those of rank 0's host: the others on it find the same mistake.
        outputs = _outputs(arguments) if mine.rank == mine.local_rank else None
        if arguments.memory:
            _check_memory(arguments.device_memory, mine)
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
    return arguments, command, outputs


def _check_memory(said: str | None, mine: LaunchedRank) -> None:
    if SweepRequest(device_memory=sizes(said)).memory_of(mine.local_rank, mine.local_size) is None:
        if usable_gpus():
            return
        raise DoctorError(
            "--memory: there is no GPU to measure: say how much memory one would have: "
            "--device-memory 24GiB"
        )


def _outputs(arguments: Namespace) -> Outputs:
    from ddoctor.report.output import Outputs

    return Outputs(
        json=arguments.json,
        markdown=arguments.markdown,
        html=arguments.html,
        bundle=arguments.bundle,
    )


def _connect(mine: LaunchedRank) -> ClusterStore:
    from ddoctor.cluster.store import StoreLost, connect

    # Where there is no store yet, the script itself will open one at the port that it was given.
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


def _follow(fleet: ClusterStore, child: Child, new_child: NewChild) -> int:
    from ddoctor.cluster.store import StoreLost
    from ddoctor.cluster.supervisor import CoordinatorLost
    from ddoctor.training.follow import follow

    try:
        return _like(follow(fleet, child, new_child) or 0)
    except (StoreLost, CoordinatorLost) as error:
        raise DoctorError(f"rank {child.mine.rank}: {error}") from error


def _like(code: int) -> int:
    """End as the script did; a signal that ended it ends this process, too."""
    if code >= 0:
        return code
    sys.stdout.flush()
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 1
