"""Run probes one after the other; after a hang or crash, the rest run in new processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddoctor.cluster.measurement import SILENT, Limits, MeasurementRun
from ddoctor.cluster.measuring import INTERRUPTED
from ddoctor.cluster.store import ClusterStore, Order, RankInfo
from ddoctor.evidence.probes import ProbeRun, RankState
from ddoctor.evidence.section import Section


class ProbeSeries:
    """Runs probes and keeps their results so far."""

    def __init__(
        self, store: ClusterStore, here: Sequence[RankInfo], ranks: Sequence[RankInfo]
    ) -> None:
        self._store, self._here, self._ranks = store, here, ranks
        self.runs: list[ProbeRun] = []
        self.sections: list[Section] = []
        self.joined: set[int] | None = None
        """Ranks that joined a process group; None: no attempt was made."""
        self.states: dict[int, RankState] = {}
        """States of all ranks when the last probe hung or crashed."""

    def measure(
        self,
        probes: Sequence[str],
        order: Callable[[Sequence[str]], Order],
        data: Path,
        limits: Limits,
        started: Callable[[str], None],
    ) -> None:
        """Run the probes; ``order`` makes the order to run some of them.

        Raises:
            KeyboardInterrupt: the user interrupted; earlier results are kept.
            StoreLost: the store no longer answers.
        """
        waiting = list(probes)
        while waiting:
            run = MeasurementRun(self._store, self._here, order(waiting), self._ranks)
            try:
                run.watch(data, limits, started)
            finally:
                self.joined = (self.joined or set()) | run.joined
                self.states = run.states or self.states
                ended = run.runs()
                self.runs += ended
                waiting = waiting[len(ended) :]
                self.sections += run.sections()
            if run.outcome == "interrupted":
                self.runs += [ProbeRun(probe=name, outcome="interrupted") for name in waiting]
                raise KeyboardInterrupt
            why = _why_not(run, ended[-1], limits) if waiting else ""
            if why:
                self.runs += skipped(waiting, why)
                return


def skipped(probes: Sequence[str], reason: str) -> list[ProbeRun]:
    """Results of probes that did not run, for this reason."""
    return [ProbeRun(probe=name, outcome="skipped", reason=reason) for name in probes]


def _why_not(run: MeasurementRun, last: ProbeRun, limits: Limits) -> str:
    """Why the rest of the probes cannot run in new processes; empty: they can."""
    if not run.began:
        return f"the ranks could not start, see {last.probe}"
    if time.monotonic() > limits.deadline - limits.relaunch:
        return f"no time was left after {last.probe} {last.outcome}"
    if any(one.status == SILENT for one in run.states.values()):
        return f"a rank no longer answers, see {last.probe}"
    if any(one.words == INTERRUPTED for one in run.states.values()):
        return f"a rank was interrupted, see {last.probe}"
    return ""
