"""The ranks are given different amounts of work, and all wait for the one that has the most.

Batches of as many samples are not as much work where the samples differ: a batch is padded to its
longest text, an image may have more pixels. The step takes as long as on the rank that has drawn
the most, at each step another one, and the time of all the others is lost. Where one rank always
has more, its share of the data is another than that of its peers.

Seen from outside: one rank after the other is late, by turns, on sound hardware; steps of very
different times; a profile of each rank alone shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, median

from ddoctor.analysis.stragglers import NOTICEABLE, SLOWER_BY, STEADY, comparable
from ddoctor.analysis.work_imbalance import Workload, workload
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)


def more_work(steps: Steps, run: TrainingRun | None) -> Iterator[Finding]:
    work = workload(steps) if comparable(steps) else None
    if work is None:
        return
    heaviest = tuple(
        rank.place for index, rank in enumerate(steps.ranks) if work.heaviest(index) >= STEADY
    )
    share = work.lost / steps.step
    slower = max(share, work.longer / steps.step if heaviest else 0.0)
    # Who always has more is worth a line before it is dear.
    if slower < (NOTICEABLE if heaviest else SLOWER_BY):
        return
    name = "numbers (of text: tokens)" if work.unit == "numbers" else work.unit
    if heaviest:
        who = " and ".join(f"rank {place.rank}" for place in heaviest)
        told = f"{who} has {work.ratio:.0%} more {name} in a step than its peers, and computes"
    else:
        told = (
            f"the rank with the most {name} has {work.ratio:.0%} more than its peers in the median "
            "step, at each step another rank, and computes"
        )
    yield Finding(
        severity=Severity.WARNING if slower >= SLOWER_BY else Severity.NOTE,
        confidence=Confidence.CERTAIN if heaviest else Confidence.LIKELY,
        because=(
            f"{told} longer by as much: with equal work a step of {1000 * steps.step:.3g} ms would "
            f"take {1000 * work.lost:.3g} ms less"
        ),
        evidence=tuple(_rows(steps, work)),
        where=Where(
            hosts=tuple(dict.fromkeys(place.host for place in heaviest)),
            ranks=tuple(place.rank for place in heaviest),
        ),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_fix(work, bool(heaviest), run),),
    )


def _rows(steps: Steps, work: Workload) -> Iterator[Observation]:
    usual = median(map(fmean, work.amounts))
    for rank, amounts in zip(steps.ranks, work.amounts, strict=True):
        if len(steps.ranks) == 2 or abs(fmean(amounts) - usual) >= SLOWER_BY * usual:
            yield Observation(
                name=f"{work.unit} in a step, rank {rank.place.rank}",
                value=round(fmean(amounts)),
                expected=round(usual),
                source=f"the median of {len(steps.ranks)} ranks",
            )
    yield Observation(
        name=f"time of one more of the {work.unit}",
        value=float(f"{1e6 * work.seconds_each:.3g}"),
        unit="µs",
        source="regression over all ranks and steps",
    )


def _fix(work: Workload, same_rank: bool, run: TrainingRun | None) -> Fix:
    gain = "up to the share of the step that is named"
    if work.unit == "samples":
        return Fix(
            summary="give every rank as many samples: one batch size, and no shorter last batch",
            paste=(
                "sampler = DistributedSampler(dataset, drop_last=True)\n"
                "loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, "
                "drop_last=True)"
            ),
            language="python",
            expected_gain=gain,
        )
    if run is not None and run.framework == "transformers":
        return Fix(
            summary="put texts of like lengths into the same step on all ranks",
            paste="training_arguments = TrainingArguments(..., group_by_length=True)",
            language="python",
            caution="the order is a little less random",
            expected_gain=gain,
        )
    summary = "share the samples out so that all ranks have as much in each step"
    if same_rank:
        summary = "share the data out at random, not by file or by length, and then by length:"
        summary += " as much for each rank in each step"
    return Fix(
        summary=summary,
        paste=LIKE_LENGTHS,
        language="python",
        caution="or pack texts to sequences of one length, so that nothing is padded",
        expected_gain=gain,
    )


LIKE_LENGTHS = '''\
class LikeLengths(torch.utils.data.Sampler):
    """Batches of like lengths: in each step, those of all ranks are neighbours by length."""

    def __init__(self, lengths, batch_size, rank, ranks):
        self.lengths, self.batch_size = torch.as_tensor(lengths), batch_size
        self.rank, self.ranks, self.epoch = rank, ranks, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // (self.batch_size * self.ranks)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        shuffled = torch.randperm(len(self.lengths), generator=generator)
        whole = len(self) * self.batch_size * self.ranks
        by_length = shuffled[self.lengths[shuffled].argsort(stable=True)][:whole]
        steps = by_length.view(len(self), self.ranks, self.batch_size)
        for step in torch.randperm(len(self), generator=generator):
            yield steps[step, self.rank].tolist()


loader = DataLoader(dataset, batch_sampler=LikeLengths(lengths, batch_size, rank, world_size))'''
