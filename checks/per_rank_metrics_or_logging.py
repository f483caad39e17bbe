"""Every rank logs, or computes metrics, for itself.

Lines, progress bars and files of all ranks mix, their number grows with the ranks, and a tracker
shows the figures of whichever rank wrote last. A metric that a rank computes by itself is that of
its own share of the data: an accuracy of 29 % where it is 87 % is one of three ranks' hits divided
by the samples of all.

Seen from outside: each message comes as often as there are ranks, and metrics fall as ranks are
added. Which figures are wrong no clock can tell: this is a note.
"""

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
# A line at which a rank is met less often is there by chance: of so few looks the spread (the root
# of their number) is half.
FEWEST_LOOKS = 5
# It is a note, so it asks for less than the tenth of a step from which on a slowdown counts.
NOTABLE = 0.02
# Of the samples of a look from outside: with so few a smaller share may be chance.
NOTABLE_LIVE = 0.1


def on_all_ranks(lines: Lines, steps: Steps) -> Iterator[Finding]:
    devices = {rank.place.rank: rank.place.device for rank in steps.ranks}
    if len(devices) < 2:
        return
    met: dict[tuple[str, int], dict[int, HotLine]] = {}
    for rank in lines.ranks:
        on_gpu = devices.get(rank.rank, "cpu") != "cpu"
        for line in rank.lines:
            if _tells(line, on_gpu=on_gpu) and _notable(line, rank):
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
    told = {
        line: median(rows)
        for line, rows in shares.items()
        if len(rows) == len(live.ranks) and min(rows) >= NOTABLE_LIVE
    }
    if told:
        line = max(told, key=lambda rank: told[rank])
        ranks = tuple(rank.rank for rank in live.ranks)
        yield _finding(endings.place(line), line.text, line.text, ranks, told[line])


def _lines(rank: LiveRankState) -> Mapping[Frame, int]:
    """The user's lines at which a rank logs or computes metrics, with the samples there."""
    met: dict[Frame, int] = {}
    for row in rank.seen.activities:
        if row.line is not None and _is_told(row, on_gpu=rank.seen.on_gpu):
            met[row.line] = met.get(row.line, 0) + row.samples
    return met


def _is_told(met: Activity, *, on_gpu: bool) -> bool:
    text = met.line.text if met.line is not None else ""
    # On a GPU such a line may wait for what it prints, and that is not its own time.
    by_text = met.name == "rest" and not on_gpu
    return met.name == "logging" or (
        by_text and (LOGGING.search(text) or METRICS.search(text)) is not None
    )


def _tells(line: HotLine, *, on_gpu: bool) -> bool:
    """Whether it is logging or metrics that take the time there."""
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
    unsure = (
        "; whether they are reduced over the ranks afterwards, the script tells" if metrics else ""
    )
    return Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE if metrics else Confidence.LIKELY,
        because=(
            f"each of {len(ranks)} ranks {what} at {at} (`{text}`), for {share:.0%} of the "
            f"step{unsure}"
        ),
        evidence=(
            Observation(
                name=f"looks that met a rank at {at}",
                value=round(100 * share, 1),
                unit="%",
                source="the median of all ranks",
            ),
        ),
        where=Where(ranks=ranks),
        cost=Cost(value=round(share, 3), unit="share of step"),
        fixes=(_reduce() if metrics else _log_once(text),),
    )


def _reduce() -> Fix:
    return Fix(
        summary="add up counts over the ranks, then divide",
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
        summary="log on rank 0, every so many steps",
        paste=f"if torch.distributed.get_rank() == 0 and step % 50 == 0:\n    {text}",
        language="python",
        caution="a line with a collective in it has to stay on all ranks",
    )
