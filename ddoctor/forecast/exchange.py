"""The communication of a training: its bytes, its links, and the part that computing does not hide.

Bytes as in ZeRO (arXiv 1910.02054, section 7): an all-reduce moves 2 (n - 1) / n of what it sums
through each GPU, an all-gather and a reduce-scatter half of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ddoctor import knowledge
from ddoctor.analysis.scaling import CONTENTION
from ddoctor.evidence.cluster_probes import Collectives
from ddoctor.evidence.known_hardware import AllReduceFigures, GpuModel
from ddoctor.evidence.plan import GPUS_PER_HOST, Strategy
from ddoctor.evidence.probes import AllReduce, SweepPoint
from ddoctor.evidence.section import Evidence
from ddoctor.forecast.closed_form import COMPUTING, WEIGHT, Model

# 228 to 235 of an A100's 300 GB/s, 361 to 370 of an H100's 450 without the switch's sums.
OF_NVLINK = 0.77
# Computing is 18.9 % slower in the mean while GPUs communicate (arXiv 2507.03114: A100s, H100s).
OVERLAPPED = 0.189
# The backward pass has two matrix products for each one of the forward pass.
BACKWARD = 2

# DeepSpeed's average_tensor all-reduces each bucket of gradients, of which a rank keeps its part:
# twice the volume of the reduce-scatter in ZeRO's paper, as long as
# use_multi_rank_bucket_allreduce is on.
REDUCED_WHOLE: tuple[Strategy, ...] = ("zero-1", "zero-2", "zero-2-offload")


@dataclass(frozen=True, kw_only=True)
class PlannedLink:
    """A link between GPUs."""

    rate: float
    """Bytes per second to and from each GPU: nccl-tests' busbw, minus the loss by concurrent
    computing."""
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class PlannedLinks:
    """The links of a GPU; None: not known."""

    within: PlannedLink | None = None
    """To the other GPUs of its host."""
    between: PlannedLink | None = None
    """To GPUs of other hosts, with all GPUs of its host using the network at the same time."""

    def exposed(
        self, model: Model, strategy: Strategy, gpus: int, computing: float, apart: int = 1
    ) -> float | None:
        """Return exposed seconds of communication per micro-batch; None: a link is not known.

        ``apart``: between the GPUs lie those of their tensor parallelism.
        """
        found = self._passes(model, strategy, gpus, apart)
        if found is None:
            return None
        forward, backward = _split(model, computing)
        return max(0.0, found[0] - forward) + max(0.0, found[1] - backward)

    def slowdown(
        self, model: Model, strategy: Strategy, gpus: int, computing: float, apart: int = 1
    ) -> float:
        """Return the seconds that the hidden communication adds to the computing time."""
        found = self._passes(model, strategy, gpus, apart)
        if found is None:
            return 0.0
        forward, backward = _split(model, computing)
        return OVERLAPPED * (min(forward, found[0]) + min(backward, found[1]))

    def updating(self, model: Model, strategy: Strategy, gpus: int) -> float | None:
        """Return the seconds after each optimizer step in which ZeRO-1 and 2 gather the weights.

        None: a link is not known.
        """
        if gpus == 1 or strategy not in REDUCED_WHOLE:
            return 0.0
        found = self._passes(model, strategy, gpus)
        return None if found is None else found[1] / 2

    def _passes(
        self, model: Model, strategy: Strategy, gpus: int, apart: int = 1
    ) -> tuple[float, float] | None:
        """Return the seconds of communication in the forward and in the backward pass.

        None: a link is not known.
        """
        if gpus == 1:
            return 0.0, 0.0
        hosts = ceil(gpus * apart / GPUS_PER_HOST)
        link = self.within if hosts == 1 or strategy == "fsdp-hybrid" else self.between
        if link is None or (hosts > 1 and self.between is None):
            return None
        members = GPUS_PER_HOST // apart if strategy == "fsdp-hybrid" else gpus
        gather = (members - 1) / members / link.rate  # seconds of each byte
        if strategy == "ddp":
            return 0.0, 2 * gather * model.trainable * WEIGHT[model.precision]
        if strategy in REDUCED_WHOLE:
            return 0.0, 2 * gather * model.trainable * COMPUTING[model.precision]
        once = gather * model.parameters * COMPUTING[model.precision]
        again = 0.0 if strategy == "fsdp-gradients" else once
        each = gather
        if strategy == "fsdp-hybrid" and self.between is not None:
            # Each GPU all-reduces its shard with other hosts, all GPUs of a host at the same time.
            each += 2 * (hosts - 1) / hosts / self.between.rate
        forward = model.forwards * once
        return forward, again + each * model.trainable * COMPUTING[model.precision]


def _split(model: Model, computing: float) -> tuple[float, float]:
    """Return the seconds of the forward passes, and those of the backward pass."""
    forward = computing * model.forwards / (model.forwards + BACKWARD)
    return forward, computing - forward


def times(strategy: Strategy, accumulation: int, *, pipelined: bool = False) -> int:
    """Return the exchanges per step: DDP's and ZeRO-1's in the last micro-batch, others' in each.

    ``pipelined``: torch's pipelines keep gathered parameters and whole gradients until the last.
    """
    once = strategy == "zero-1" or (pipelined and strategy == "fsdp-gradients")
    return accumulation if strategy.startswith(("fsdp", "zero")) and not once else 1


def known(gpu: GpuModel) -> PlannedLinks:
    """Return the links by the tables; an NVLink bridge is optional, so it does not count."""
    figures = knowledge.load(AllReduceFigures)
    over_pcie = figures.pcie(gpu.pcie) if gpu.pcie is not None else None
    within = None
    if gpu.nvlink is not None and not gpu.bridge:
        within = _within_training(OF_NVLINK * gpu.nvlink)
    elif over_pcie is not None:
        within = _within_training(over_pcie.published[0])
    network = figures.network(gpu.name)
    between = None
    if network is not None:
        adapters = f"{network.adapters} adapters of {network.gigabits} Gb/s"
        between = _within_training(network.published[0], f"as published for hosts with {adapters}")
    return PlannedLinks(within=within, between=between)


def measured(evidence: Evidence) -> PlannedLinks:
    """Return the links that were measured, by all-reduces of large messages."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for hosts, points in _sweeps(evidence):
        if points:
            largest = max(points, key=lambda point: point.bytes)
            found[hosts > 1].append(largest.bus_bandwidth)
    # All hosts wait for the slowest one.
    within, between = (
        _within_training(min(rates), "as measured") if rates else None for rates in found.values()
    )
    return PlannedLinks(within=within, between=between)


def _within_training(bandwidth: float, source: str = "") -> PlannedLink:
    """Return the link with the share of this bandwidth in GB/s that is left within a training."""
    return PlannedLink(rate=bandwidth * 1e9 / CONTENTION, source=source)


def _sweeps(evidence: Evidence) -> Iterator[tuple[int, tuple[SweepPoint, ...]]]:
    """Yield the number of hosts of each sweep, and its points."""
    for alone in evidence.all(AllReduce):
        if len(alone.ranks) > 1:
            yield len({place.host for place in alone.ranks}), alone.points
    for section in evidence.all(Collectives):
        hosts = {place.rank: place.host for place in section.ranks}
        for sweep in section.sweeps:
            # With one GPU per host, that GPU could use all adapters.
            usual = sweep.collective == "all-reduce" and sweep.scope != "across"
            if usual and len(sweep.ranks) > 1:
                yield len({hosts[rank] for rank in sweep.ranks}), sweep.points
