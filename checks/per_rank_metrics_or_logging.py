"""Every rank logs, or computes metrics, for itself.

Lines, progress bars and files of all ranks mix and grow with the number of ranks. A tracker shows
the values of whichever rank wrote last. A metric that a rank computes alone covers only its share
of the data: an accuracy of 29 % instead of 87 % is the hits of one of three ranks divided by the
samples of all.

Symptoms: each message appears once per rank, and metrics fall as ranks are added. Timing cannot
show which values are wrong, so this is a note.

To fix it, log on rank 0 only, and all-reduce the counts of a metric before dividing.
"""

# Above 150 lines: a recorded run, a live one and the source.

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from ddoctor.analysis import endings
from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import (
    LOADER,
    evaluates,
    is_plain,
    shown,
    targets,
    with_keywords,
    written,
)
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import HotLine, Lines, Steps
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
            often = line.samples >= max(FEWEST_LOOKS, NOTABLE * rank.samples)
            if often and _logs_or_measures(line, on_gpu=on_gpu):
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
    shared: dict[Frame, float] = {}
    for line in {row.line for row in live.ranks[0].seen.activities if row.line is not None}:
        shares = [_share(rank, line) for rank in live.ranks]
        if min(shares) >= NOTABLE_LIVE:
            shared[line] = median(shares)
    if shared:
        line = max(shared, key=lambda line: shared[line])
        ranks = tuple(rank.rank for rank in live.ranks)
        yield _finding(endings.place(line), line.text, line.text, ranks, shared[line])


def in_the_source(script: Script) -> Iterator[Finding]:
    """Each rank starts its own run in the tracker of experiments."""
    if not is_plain(script):
        return
    for one in script.of("wandb.init", "torch.utils.tensorboard.SummaryWriter"):
        named = any("rank" in value for value in (*one.arguments, *one.keywords.values()))
        if one.on_all_ranks and not named and not {"group", "mode", "**"} & {*one.keywords}:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=(
                    f"every rank runs {shown(one.at)}: the same run is logged once per rank, each "
                    "time with the metrics of that rank alone"
                ),
                fixes=(
                    Fix.python(
                        summary="log on rank 0 only",
                        paste=f"if torch.distributed.get_rank() == 0:\n    {one.at.text}",
                        caution="and test the rank before each line that logs",
                    ),
                ),
            )
            return


REDUCES = ("all_reduce", "reduce", "all_gather", "gather", "all_gather_object", "gather_object")
OTHERS_REDUCE = frozenset({"TorchMetrics", "Trainer", "Lightning", "TRL"})


def reported(script: Script) -> Iterator[Finding]:
    """The result of one rank's part of the evaluation is printed or logged as that of the whole."""
    for one in script.partial_metrics[:1] if is_plain(script) else ():
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.loop)} runs over the part of one rank, which {shown(one.loader)} "
                f"gives it, and {shown(one.report)} reports the result before the ranks add "
                "theirs up"
            ),
            fixes=(_REDUCED,),
        )


def by_a_local_count(script: Script) -> Iterator[Finding]:
    """The sum of all ranks is divided by the count of one of them."""
    for one in script.local_counts[:1]:
        yield Finding(
            title="A metric is too large by the number of ranks",
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(one.reduced)} adds up the sums of all ranks, and {shown(one.at)} divides "
                "them by the count of one rank"
            ),
            fixes=(_REDUCED,),
        )


def of_a_part(script: Script) -> Iterator[Finding]:
    """Each rank evaluates its own part of the data, and nothing adds the parts up."""
    if script.partial_metrics:
        return  # `reported` names the lines
    frameworks = {one.framework for one in script.imports}
    by_accelerate = "accelerate" in frameworks
    by_fabric = bool(script.of(".setup_dataloaders"))
    names = [one.name.rpartition(".")[2] for one in script.calls]
    if (
        not is_plain(script, "accelerate", *(("Lightning",) if by_fabric else ()))
        or (OTHERS_REDUCE - ({"Lightning"} if by_fabric else set())) & frameworks
        or any(name.startswith(REDUCES) or name.endswith("_tensor") for name in names)
    ):
        return
    prepared = {name for one in script.of(".prepare") for name in one.arguments}
    for one in script.of(LOADER):
        variables = {one.assigned, *targets(one)} - {""}
        shared = "sampler" in one.keywords or (by_accelerate and bool(variables & prepared))
        given = {name for call in script.of(".setup_dataloaders") for name in call.arguments}
        shared = shared or bool(given & {*variables, written(one)})
        # One function may make both loaders, and another one evaluates.
        evaluated = evaluates(one) or (
            "sampler" in one.keywords and not by_accelerate and _evaluates_in_a_function(script)
        )
        evaluated = evaluated and script.evaluates_loaders
        if evaluated and shared and one.on_all_ranks:
            adds = "gather_for_metrics" if by_accelerate else "all_reduce"
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{shown(one.at)} gives each rank a part of the evaluation, and no line of the "
                    f"script calls {adds} or the like: what one rank reports is of its part alone"
                ),
                fixes=(_GATHERED if by_accelerate else _BY_FABRIC if by_fabric else _REDUCED,),
            )
            return


def _evaluates_in_a_function(script: Script) -> bool:
    """Whether a function runs a loop without gradients, and all loaders share their samples out."""
    return script.evaluates_loaders and all("sampler" in one.keywords for one in script.of(LOADER))


_BY_FABRIC = Fix.python(
    summary="add the parts of all ranks up",
    paste="right, seen = fabric.all_reduce(torch.tensor([right, seen]), reduce_op='sum')",
)


def by_lightning(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """A value of the evaluation that Lightning logs for one rank alone."""
    if not any(one.framework == "Lightning" for one in script.imports):
        return
    if launch is not None and launch.get("arg.devices") is None and (launch.ranks or 1) < 2:
        return
    for one in script.of(".log"):
        value = one.argument("value", 1) or ""
        # A metric of torchmetrics is reduced over the ranks by itself.
        own = re.fullmatch(r"self\.\w+", value) is not None
        if value and not own and one.keywords.get("sync_dist", "False") == "False":
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} logs the mean over the samples of one rank: what chooses "
                "the best checkpoint sees a part of the evaluation",
                fixes=(
                    Fix.python(
                        summary="let Lightning reduce it over the ranks",
                        paste=with_keywords(one, sync_dist="True"),
                    ),
                ),
            )
            return


def _share(rank: LiveRankState, line: Frame) -> float:
    """The share of the time, 0 to 1, in which the rank logs or computes metrics at this line."""
    # On a GPU such a line may wait for the value that it prints, which is not its own time.
    by_text = not rank.seen.on_gpu and _is_named(line.text)
    names = ("logging", "rest") if by_text else ("logging",)
    return rank.share(lambda row: row.line == line and row.name in names)


def _logs_or_measures(line: HotLine, *, on_gpu: bool) -> bool:
    """Whether logging or metrics take the time at this line."""
    if line.phase != "rest" or not _is_named(f"{line.text} {line.inner}"):
        return False
    # A line that reads a tensor waits for the GPU to compute it, and that is not its own time.
    return not on_gpu or _is_named(line.inner)


def _is_named(text: str) -> bool:
    """Whether a line logs or measures, and rank 0 may do so alone."""
    return (
        "sync_dist=True" not in text and (LOGGING.search(text) or METRICS.search(text)) is not None
    )


def _finding(at: str, text: str, words: str, ranks: tuple[int, ...], share: float) -> Finding:
    metrics = METRICS.search(words) is not None
    what = "computes metrics" if metrics else "logs"
    once = Fix.python(
        summary="log on rank 0 only, every 50 steps",
        paste=f"if torch.distributed.get_rank() == 0 and step % 50 == 0:\n    {text}",
        caution="a line that contains a collective must stay on all ranks",
    )
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
        fixes=(_REDUCED if metrics else once,),
    )


_REDUCED = Fix.python(
    summary="all-reduce the counts, then divide",
    paste=(
        "counts = torch.tensor([correct, seen], device=device)\n"
        "torch.distributed.all_reduce(counts)\n"
        "accuracy = counts[0].item() / counts[1].item()"
    ),
    caution="once per evaluation, not in every step",
)
_GATHERED = Fix.python(
    summary="gather what the metric needs from all ranks",
    paste="predictions, labels = accelerator.gather_for_metrics((predictions, labels))",
)
