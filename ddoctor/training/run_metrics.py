"""Prometheus metrics of `ddoctor run --steps all --prometheus`, served on rank 0's host."""

from __future__ import annotations

from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ddoctor.evidence.run_history import Event
from ddoctor.report.metrics import Server
from ddoctor.training.whole_run import Figures


class RunMetrics(Server):
    """Serves the figures of the last look."""

    def __init__(self, where: str) -> None:
        """Listen at ``where``.

        Raises:
            DoctorError: ``where`` is malformed, or the port is in use.
        """
        self._last: Figures | None = None
        super().__init__(where)

    def show(self, figures: Figures) -> None:
        """Serve these figures from now on."""
        self._last = figures

    def collect(self) -> list[Metric]:
        """Return all metrics."""
        last = self._last
        if last is None:
            return []
        steps = CounterMetricFamily("ddoctor_steps", "Steps of a rank.", labels=["rank"])
        for rank, number in last.steps.items():
            steps.add_metric([str(rank)], number)
        events = CounterMetricFamily("ddoctor_events", "What happened so far.", labels=["event"])
        for event in get_args(Event):
            # From the start: Prometheus sees no increase in a series that only appears with it.
            events.add_metric([event], last.events.get(event, 0))
        hung = GaugeMetricFamily("ddoctor_hung", "1 while the run hangs.", value=float(last.hung))
        found: list[Metric] = [steps, events, hung]
        if last.stretch is not None:
            seconds = GaugeMetricFamily(
                "ddoctor_step_seconds", "Median of the last steps of rank 0.", last.stretch.median
            )
            shares = GaugeMetricFamily(
                "ddoctor_step_share", "Share of a phase in them, 0 to 1.", labels=["phase"]
            )
            for phase, share in last.stretch.phases.items():
                shares.add_metric([phase], share)
            memory = GaugeMetricFamily(
                "ddoctor_resident_bytes", "Memory of rank 0.", last.stretch.resident * 2**20
            )
            found += [seconds, shares, memory]
        return found
