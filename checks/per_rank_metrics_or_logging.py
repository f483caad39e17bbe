"""Every rank logs, or computes metrics, for itself.

Lines, progress bars and files of all ranks mix and grow with the number of ranks. A tracker shows
the values of whichever rank wrote last. A metric that a rank computes alone covers only its share
of the data: an accuracy of 29 % instead of 87 % is the hits of one of three ranks divided by the
samples of all.

Symptoms: each message appears once per rank, and metrics fall as ranks are added. Timing cannot
show which values are wrong, so this is a note.

To fix it, log on rank 0 only, and all-reduce the counts of a metric before dividing.
"""

# Above 150 lines: it finds such lines in recorded runs and in live ones.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from statistics import median

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.live import Activity
from ddoctor.evidence.steps import HotLine, Lines, RankLines, Steps
from ddoctor.evidence.training import Frame
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

LOGGING = re.compile(
    r"\bprint\(|\blogger\.|\blogging[./]|\bwandb\b|\btensorboard\b|\.add_scalars?\(|\bmlflow\b"
    r"|\btqdm\b|\bself\.log(_dict)?\(|\baccelerator\.log\("
)
METRICS = re.compile(r"\bsklearn\b|\w*_score\(|\bmetrics?\.(compute|add|add_batch|update)\(")
# A line with fewer samples may be chance: of five samples the spread (the square root) is half.
FEWEST_LOOKS = 5
# It is a note, so less than the tenth of a step is enough from which on a slowdown counts.
NOTABLE = 0.02
# Share of the samples of an attach, which are few: a smaller share may be chance.
NOTABLE_LIVE = 0.1


def on_all_ranks(lines: Lines, steps: Steps) -> Iterator[Finding]:
    devices = {rank.place.rank: rank.place.device for rank in steps.ranks}
    if len(devices) < 2:
        return
    met: dict[tuple[str, int], dict[int, HotLine]] = {}
    for rank in lines.ranks:
        on_gpu = devices.get(rank.rank, "cpu") != "cpu"
        for line in rank.lines:
            if _logs_or_measures(line, on_gpu=on_gpu) and _notable(line, rank):
                met.setdefault((line.file, line.line), {})[rank.rank] = line
    shares = {
        place: median(by_rank[one.rank].samples / one.samples for one in lines.ranks)
        for place, by_rank in met.items()
        if devices.keys() <= by_rank.keys() and all(one.rank in by_rank for one in lines.ranks)
    }
    if shares:
        place = max(shares, key=lambda one: shares[one])
        line = met[place][min(met[place])]
        at = f"{line.file}:{line.line}"
        yield _finding(
            at, line.text, f"{line.text} {line.inner}", tuple(sorted(met[place])), shares[place]
        )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    if len(live.ranks) < 2 or not live.moves:
        return
    shares: dict[Frame, list[float]] = {}
    for rank in live.ranks:
        for line, samples in _lines(rank).items():
            shares.setdefault(line, []).append(samples / rank.seen.samples)
    shared = {
        line: median(rows)
        for line, rows in shares.items()
        if len(rows) == len(live.ranks) and min(rows) >= NOTABLE_LIVE
    }
    if shared:
        line = max(shared, key=lambda rank: shared[rank])
        ranks = tuple(rank.rank for rank in live.ranks)
        yield _finding(endings.place(line), line.text, line.text, ranks, shared[line])


def _lines(rank: LiveRankState) -> Mapping[Frame, int]:
    """Lines of the script at which a rank logs or computes metrics, with their samples."""
    met: dict[Frame, int] = {}
    for row in rank.seen.activities:
        if row.line is not None and _is_such_activity(row, on_gpu=rank.seen.on_gpu):
            met[row.line] = met.get(row.line, 0) + row.samples
    return met


def _is_such_activity(met: Activity, *, on_gpu: bool) -> bool:
    text = met.line.text if met.line is not None else ""
    # On a GPU such a line may wait for the value that it prints, which is not its own time.
    by_text = met.name == "rest" and not on_gpu
    return met.name == "logging" or (
        by_text and (LOGGING.search(text) or METRICS.search(text)) is not None
    )


def _logs_or_measures(line: HotLine, *, on_gpu: bool) -> bool:
    """Whether logging or metrics take the time at this line."""
    words = f"{line.text} {line.inner}"
    if line.phase != "rest" or not (LOGGING.search(words) or METRICS.search(words)):
        return False
    # A line that reads a tensor waits for the GPU to compute it, and that is not its own time.
    return not on_gpu or bool(LOGGING.search(line.inner) or METRICS.search(line.inner))


def _notable(line: HotLine, rank: RankLines) -> bool:
    return line.samples >= max(FEWEST_LOOKS, NOTABLE * rank.samples)


def _finding(at: str, text: str, words: str, ranks: tuple[int, ...], share: float) -> Finding:
    metrics = METRICS.search(words) is not None
    what = "computes metrics" if metrics else "logs"
    unsure = "; check in the script whether the ranks reduce them afterwards" if metrics else ""
    return Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE if metrics else Confidence.LIKELY,
        because=(
            f"each of {len(ranks)} ranks {what} at {at} (`{text}`) for {share:.0%} of the "
            f"step{unsure}"
        ),
        evidence=(
            Observation(
                name=f"samples at {at}",
                value=round(100 * share, 1),
                unit="%",
                source="median of all ranks",
            ),
        ),
        where=Where(ranks=ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_reduce() if metrics else _log_once(text),),
    )


def _reduce() -> Fix:
    return Fix(
        summary="all-reduce the counts, then divide",
        paste=(
            "counts = torch.tensor([correct, seen], device=device)\n"
            "torch.distributed.all_reduce(counts)\n"
            "accuracy = counts[0].item() / counts[1].item()"
        ),
        language="python",
        caution="once per evaluation, not in every step",
    )


def _log_once(text: str) -> Fix:
    return Fix(
        summary="log on rank 0 only, every 50 steps",
        paste=f"if torch.distributed.get_rank() == 0 and step % 50 == 0:\n    {text}",
        language="python",
        caution="a line that contains a collective must stay on all ranks",
    )
