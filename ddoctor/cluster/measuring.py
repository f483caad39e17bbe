"""The measuring processes, one per rank; a supervisor reports each hang and crash."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddoctor.cluster.failure_reasons import last_line
from ddoctor.cluster.store import (
    BEAT_SECONDS,
    ClusterStore,
    Order,
    ProbeEnd,
    RankInfo,
    RankProgress,
    key,
)
from ddoctor.probing.journal import Follower, JournalLine
from ddoctor.proc import processes
from ddoctor.proc.folder import TemporaryFolder, without_room
from ddoctor.proc.parent import end_with_parent

INTERRUPTED = "interrupted by Ctrl-C or a signal on its host"
"""The error of a rank whose supervisor was interrupted."""

GRACE_SECONDS = 0.5


class Measuring:
    """The measuring processes of some ranks of this host during one order."""

    def __init__(
        self,
        store: ClusterStore,
        ranks: Sequence[RankInfo],
        number: int,
        order: Order,
        data: Path,
    ) -> None:
        self._store, self._ranks, self._number = store, ranks, number
        self._order, self._data = order, data
        self._temporary = TemporaryFolder()
        self._folder, self._tag = self._temporary.path, self._temporary.tag
        self._processes: list[_MeasuringProcess] = []

    def __enter__(self) -> Measuring:
        try:
            for rank in self._ranks:
                options = (
                    f"--folder={self._folder}",
                    f"--data={self._data.resolve()}",
                    f"--gpus-in-use={self._order.gpus_in_use}",
                    f"--store-prefix=order-{self._number}",
                    *self._order.options,
                    *self._order.probes,
                )
                environment = _environment(self._store, rank, self._order) | self._tag
                self._processes.append(
                    _MeasuringProcess(
                        self._store, rank, self._number, self._folder, options, environment
                    )
                )
        except BaseException:
            self.__exit__(None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.end(INTERRUPTED if kind is KeyboardInterrupt else "")
        self._temporary.cleanup()

    @property
    def over(self) -> bool:
        """Whether every process has ended."""
        return all(one.over for one in self._processes)

    def tick(self) -> None:
        """Read the journals, and report progress."""
        for one in self._processes:
            if one.over:
                continue
            if one.exit_code is None:
                one.report_progress()
            else:
                # Processes that the rank started must not outlive it.
                tag = self._tag | {"RANK": str(one.rank)}
                one.close(code=one.exit_code, survivors=processes.end(0.0, **tag))

    def end(self, why: str = "") -> None:
        """Sample the states of all processes, then end them and all that they started."""
        running = [one for one in self._processes if not one.over]
        codes = {one.rank: one.exit_code for one in running}
        survivors: tuple[int, ...] = ()
        states: Mapping[int, str] = {}
        try:
            # Sample all before the first one ends: its end changes the states of the others.
            states = processes.statuses([one.pid for one in running if codes[one.rank] is None])
        finally:
            if running or not self._processes:
                survivors = processes.end(GRACE_SECONDS if states else 0.0, **self._tag)
        for one in running:
            one.close(
                code=codes[one.rank],
                status=states.get(one.pid, ""),
                why=why,
                survivors=survivors if one is running[0] else (),
            )


class _MeasuringProcess:
    """The measuring process of one rank, and its progress from the journal."""

    def __init__(
        self,
        store: ClusterStore,
        info: RankInfo,
        number: int,
        folder: Path,
        options: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._store, self.rank, self._number = store, info.rank, number
        self._errors = folder / f"errors-{info.rank}.txt"
        self._follower = Follower(folder, info.rank)
        self._last_step = time.monotonic()
        self._reported = 0.0
        with self._errors.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ddoctor.probing.worker", *options],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Launchers and terminals signal whole process groups; the supervisor ends this one.
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.pid = self._process.pid
        self._progress = RankProgress(rank=info.rank, host=info.host, pid=self.pid)

    @property
    def over(self) -> bool:
        """Whether the final report has been sent."""
        return self._progress.over

    @property
    def exit_code(self) -> int | None:
        """Exit code; None: the process runs."""
        return self._process.poll()

    def report_progress(self) -> None:
        """Report new steps of the journal, and at least once per second that the process runs."""
        if self._read() or time.monotonic() - self._reported > BEAT_SECONDS:
            self._report()

    def close(
        self,
        *,
        code: int | None,
        status: str = "",
        why: str = "",
        survivors: tuple[int, ...] = (),
    ) -> None:
        """Send the final report once the process has ended."""
        self._process.poll()
        self._read()
        progress = self._progress
        progress.over, progress.status, progress.survivors = True, status, survivors
        progress.exit_code = code or None
        if not progress.words:
            # On a full disk, it could not write its error either.
            progress.words = (last_line(self._errors) or without_room()) if code else why
        self._report()

    def _read(self) -> bool:
        before = self._progress.steps
        for line in self._follower.new_lines():
            self._take(line)
        return self._progress.steps > before

    def _take(self, line: JournalLine) -> None:
        progress = self._progress
        progress.last, self._last_step = line.doing, line.time
        progress.steps += 1
        progress.joined = progress.joined or line.doing == "joined"
        if line.probe:
            progress.began.setdefault(line.probe, line.time)
        if line.outcome == "failed":
            progress.words = line.reason
        elif line.outcome:
            holds = bytes(line.section) != b"null"
            if holds:
                self._store.set(key("section", self._number, self.rank, line.probe), line.section)
            progress.ended[line.probe] = ProbeEnd(
                outcome=line.outcome,
                reason=line.reason,
                seconds=line.time - progress.began[line.probe],
                section=holds,
            )

    def _report(self) -> None:
        self._reported = time.monotonic()
        self._progress.age = self._reported - self._last_step
        self._store.set(key("progress", self._number, self.rank), self._progress)


def _environment(store: ClusterStore, me: RankInfo, order: Order) -> dict[str, str]:
    """The environment of a measuring process: torch uses the open store, as under torchrun."""
    variables: dict[str, str | None] = {
        "RANK": str(me.rank),
        "LOCAL_RANK": str(me.local_rank),
        "WORLD_SIZE": str(me.world_size),
        "LOCAL_WORLD_SIZE": str(me.local_size),
        "MASTER_ADDR": store.address,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # A queue.py in the user's folder must not be imported instead of Python's own. Python 3.10
        # does not know the variable; there, the temporary working folder prevents it.
        "PYTHONSAFEPATH": "1",
        "TORCHELASTIC_ERROR_FILE": None,
    }
    if me.host in (order.hosts or [me.host]):
        variables |= order.environment
    return {name: value for name, value in (os.environ | variables).items() if value is not None}
