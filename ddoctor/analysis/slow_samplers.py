"""Samplers that take long for the indices of each batch, which no worker draws."""

from __future__ import annotations

from ddoctor.analysis import endings
from ddoctor.analysis.loader_throughput import Feed
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import Lines
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

MOST = 0.5
"""Share of the wait for batches: then workers would make it little shorter."""


def takes_most(feed: Feed) -> bool:
    """Whether the sampler takes most of the time that a rank waits for its loader."""
    return feed.loader.sampler_seconds * feed.per_step >= MOST * feed.wait > 0


def draw_many(share: float) -> Fix:
    """The fix; ``share`` of the step is what the sampler takes, 0 to 1."""
    return Fix.python(
        summary="draw the indices of many batches at once, and hand them out",
        paste=(
            "def __iter__(self):\n"
            "    while True:\n"
            "        drawn = torch.multinomial(self.weights, 500 * self.batch_size, True)\n"
            "        yield from drawn.view(500, self.batch_size).tolist()"
        ),
        caution="weights that change count from the next 500 batches on",
        expected_gain=f"up to {share:.0%} of the step",
    )


def finding(feed: Feed, where: Where, lines: Lines | None) -> Finding:
    """Tell it of the rank that waits longest."""
    loader, line = feed.loader, _line(feed, lines)
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"rank {feed.rank} waits for the loader at {loader.name} for {feed.share:.0%} of the "
            f"step, mostly for the indices of the batch: {loader.sampler} takes "
            f"{loader.sampler_seconds:.3g} s for them{endings.at(line)}{endings.quoted(line)}; "
            "the training process draws them itself, also with workers"
        ),
        evidence=(
            Observation(
                name="indices of a batch",
                value=round(1000 * loader.sampler_seconds, 2),
                unit="ms",
                source=f"median, rank {feed.rank}",
            ),
        ),
        where=where,
        cost=Cost(value=round(feed.share, 3), unit="share of step"),
        fixes=(draw_many(feed.share),),
    )


def _line(feed: Feed, lines: Lines | None) -> Frame | None:
    """The line of the main thread in the loader with most samples; None: not known."""
    rows = lines.of(feed.rank, "loader") if lines is not None else ()
    return rows[0].frame if rows else None
