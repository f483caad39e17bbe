"""One rank of `… -m ddoctor.probe run`: start the script, watch it, and report on rank 0."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ddoctor import console
from ddoctor.cluster.launcher_environment import (
    LaunchedRank,
    dialect,
    leave_it_to_rank_0,
    place,
    restarts,
)
from ddoctor.errors import DoctorError
from ddoctor.evidence import redaction
from ddoctor.options import BEFORE_A_COMMAND, parse
from ddoctor.probing.sweep_request import SweepRequest, sizes
from ddoctor.probing.world import usable_gpus
from ddoctor.proc import interruption
from ddoctor.recorder import script
from ddoctor.training import answer, events, review
from ddoctor.training.child import FORWARDED, Child, NewChild
from ddoctor.training.command import recorder_command
from ddoctor.training.messages import TurnOrder, Unrecorded
from ddoctor.training.options import RunOptions, refuse_options

if TYPE_CHECKING:
    from ddoctor.report.output import Outputs

PROGRAM = "torchrun … -m ddoctor.probe run"
JOIN_SECONDS = 300.0
# A rank whose script has ended waits so long for a rank 0 that has not opened the store.
LATE_SECONDS = 30.0
FEWEST_DESCRIPTORS = 20
NO_THREAD = "can't start new thread"
"""What Python says where the user has as many as `ulimit -u` allows."""


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


class _Orphaned(BaseException):
    """A signal came, and the launcher has gone. No library's ``except Exception`` catches it."""


def main(words: Sequence[str], given: Sequence[str]) -> int:
    """Run one rank; return the script's exit code if it failed, else on rank 0 the report's.

    ``given``: arguments of the launcher for the script.

    Raises:
        DoctorError: an option is wrong, or the ranks cannot reach each other.
    """
    launched = _place()
    asked = _asked(words, given, launched)
    if asked is None:
        leave_it_to_rank_0()
        return 2
    options, command, outputs = asked
    reviewed = review.take(wanted=launched.rank == 0)
    host, launcher = socket.gethostname(), os.getppid()
    current: list[Child] = []
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if _without_launcher(launched, launcher):
            raise _Orphaned
        if current:
            current[0].forward(number)
        else:
            early.append(number)

    def new_child(turn: int, order: TurnOrder) -> Child:
        child = Child(*(command, launched), turn=turn, order=order, host=host, whole=options.whole)
        current[:] = [child]
        return child

    def pause(number: int, frame: FrameType | None) -> None:
        if current:
            current[0].pause()
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    interruption.insist_on(_Orphaned)
    interruption.handle(FORWARDED, forward)
    interruption.handle([signal.SIGTSTP], pause)
    try:
        child = _first(new_child, launched, command)
        for one in early:
            child.forward(one)
        code = _supervise(child, new_child, options, command, outputs, reviewed, launcher)
    except (_Orphaned, Exception) as error:
        # Native code, as in an import, makes another error of what a signal's handler raises.
        if isinstance(error, DoctorError) or not _without_launcher(launched, launcher):
            raise
        ends = f"rank {launched.rank} ends (has the launcher been killed?)"
        raise DoctorError(ends) from error
    finally:
        if current:
            current[0].end(sample=False)
    return _like(code)


def _first(new_child: NewChild, launched: LaunchedRank, command: tuple[str, ...]) -> Child:
    """Start the script; where it cannot be supervised, it takes the place of this process."""
    try:
        _check_host()
        return new_child(0, TurnOrder())
    except OSError as error:
        console.say(
            f"ddoctor: rank {launched.rank}: {error.strerror}; "
            "the script continues, and is not recorded"
        )
        sys.stdout.flush()
        os.environ.pop(answer.VARIABLE, None)
        os.execv(sys.executable, recorder_command("", command))


def _without_launcher(launched: LaunchedRank, launcher: int) -> bool:
    """Whether this rank's launcher, whose store it uses, has gone."""
    return launched.agent_store and os.getppid() != launcher


def _check_host() -> None:
    """Check that there is /proc, and that the store finds free descriptors: else it aborts.

    Raises:
        OSError: there is none, or the limit is too low.
    """
    if sys.platform == "linux" and not os.path.exists("/proc/stat"):
        raise OSError(errno.ENOENT, "there is no /proc: mount it")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= limit < FEWEST_DESCRIPTORS:
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (ulimit -n {limit})")


def _place() -> LaunchedRank:
    if dialect(os.environ) is not None:
        return place()
    return LaunchedRank(rank=0, world_size=1, local_rank=0, local_size=1)


def _asked(words: Sequence[str], given: Sequence[str], launched: LaunchedRank) -> Asked | None:
    """The options, the script and the output files; None: another rank reports the error."""
    try:
        options = parse(
            RankOptions, words, PROGRAM, quiet=launched.rank > 0, settings=BEFORE_A_COMMAND
        )
        if options is None:
            sys.exit(0)
        options.check()
        command = _script(options.script or [], given)
        # The output files are on the host of rank 0: its other ranks find the same error.
        leads = launched.rank == launched.local_rank
        outputs = options.of_attempt(restarts()).outputs(Path(command[0])) if leads else None
        if leads:
            events.check(options.events, options.on_event)
        if options.prometheus is not None and leads:
            from ddoctor.report import metrics

            metrics.check(options.prometheus)
        if options.memory:
            _check_memory(options.device_memory, launched)
    except DoctorError:
        if launched.rank:
            return None
        raise
    try:
        script.check(command)
    except script.Failed as error:
        if launched.local_rank:
            return None
        raise DoctorError(str(error)) from error
    return options, command, outputs


def _script(words: list[str], given: Sequence[str]) -> tuple[str, ...]:
    """The script, or ``-m`` and a module; then its arguments, the launcher's first."""
    refuse_options(words)
    begin = 2 if words[:1] == ["-m"] else 1
    if len(words) < begin:
        raise DoctorError("no script to run: … -m ddoctor.probe run train.py")
    return (*words[:begin], *given, *words[begin:])


def _check_memory(sizes_given: str | None, launched: LaunchedRank) -> None:
    limits = SweepRequest(device_memory=sizes(sizes_given))
    if limits.memory_of(launched.local_rank, launched.local_size) is None and not usable_gpus():
        raise DoctorError(
            "--memory finds no GPU: give the memory limit of one, such as --device-memory 24GiB"
        )


def _supervise(
    child: Child,
    new_child: NewChild,
    options: RankOptions,
    command: tuple[str, ...],
    outputs: Outputs | None,
    reviewed: bytes,
    launcher: int,
) -> int:
    # Imported only now: the script has started, and starts slowly, too.
    from ddoctor.cluster.store import (
        ANSWER_SECONDS,
        ClusterStore,
        MemoryStore,
        StoreLost,
        connect,
        connect_near,
        crowding,
    )
    from ddoctor.cluster.supervisor import CoordinatorLost
    from ddoctor.training.follow import follow

    launched = child.launched

    def useless() -> bool:
        # With the launcher, its store and the other ranks have gone.
        return os.getppid() != launcher or child.over_seconds > LATE_SECONDS

    # If the launcher has no store, the script opens one at MASTER_PORT.
    beside = not launched.agent_store and launched.port > 0
    try:
        if launched.world_size == 1:
            store = ClusterStore(MemoryStore(), launched.address)
        else:
            store = (connect_near if beside else connect)(
                launched.address,
                launched.port + beside,
                host_it=launched.hosts_store,
                limit=ANSWER_SECONDS * crowding(launched.local_size)
                if launched.agent_store
                else JOIN_SECONDS,
                prefix=f"run/{launched.run}",
                ranks=launched.world_size,
                local_ranks=launched.local_size,
                useless=useless,
            )
        if launched.rank or outputs is None:
            return follow(store, child, new_child, JOIN_SECONDS) or 0
        from ddoctor.training.report import lead

        with store.beating():
            return lead(store, child, new_child, options, command, outputs, reviewed)
    except Unrecorded as error:
        return _unrecorded(child, str(error))
    except (StoreLost, CoordinatorLost) as error:
        why = f"rank {launched.rank}: {error}"
        refused = launched.agent_store and isinstance(error.__cause__, ConnectionRefusedError)
        if os.getppid() != launcher or refused:
            raise DoctorError(f"{why} (has the launcher been killed?)") from error
        return _unrecorded(child, why)
    except Exception as error:
        if _without_launcher(launched, launcher):
            raise
        failure = 2 if child.over else 0
        told = NO_THREAD if NO_THREAD in str(error) else console.internal_error(error)
        why = f"rank {launched.rank}: {told}"
        return _unrecorded(child, why) or failure


def _unrecorded(child: Child, why: str) -> int:
    """Let the script continue to its end; return its exit code."""
    if why:
        what = "the run was" if child.over or child.leaving else "the script continues, and is"
        line = redaction.text(f"ddoctor: {why}; {what} not recorded")
        console.say(line)
    return child.without_record()


def _like(code: int) -> int:
    """Exit like the script: the signal that ended it also ends this process."""
    if code >= 0:
        return code
    sys.stdout.flush()
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 1
