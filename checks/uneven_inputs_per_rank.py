"""Ranks have different numbers of batches, so some wait for gradients that never arrive.

Each backward pass of data-parallel training needs all ranks. If the loader of one rank ends a batch
earlier, that rank continues with the next epoch or the evaluation, or leaves the script. The other
ranks wait for it in the all-reduce: forever, until a timeout, or until they mix gradients of two
epochs and hang at the very end. Typical reasons are samplers that fill batches by length, shards of
a stream, and datasets that each rank opens for itself.

Symptoms: a hang at the end of an epoch, or at the end of the training, always after the same number
of steps.

To fix it, use ``drop_last=True``, end the epoch on all ranks with the shortest one, or use
``Join``.
"""

# Above 150 lines: it counts batches of a recorded run, and finds ranks of a live one on both sides
# of a loop.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.branch_fixes import TEST, let_all_decide
from ddoctor.analysis.data_overlap import by_name, even, place, synchronised
from ddoctor.analysis.ddp_options import JOIN
from ddoctor.analysis.hung_run import seen_live
from ddoctor.analysis.live_ranks import LiveRankState, named
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import EVALUATES, LOADER, evaluates, is_plain, shown
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.loading import DataSeen, Loader, Loading, LoopTurns
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceOwnSkip
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = (
    "dead-rank",
    "first-failure-masked",
    "rank-stuck-outside-collective",
    "late-rank-timeout",
    "rank-dependent-control-flow",
    "rank0-only-collective",
    "script-error",
)


NUMBERS = re.compile(r"\brange\((?!.*\blen\()")
SO_FAR = "batches taken so far"
NO_COUNT = re.compile(r"rank|seed|id\b|pid|port|offset|start|first|begin", re.IGNORECASE)
"""Numbers that differ between ranks, and say nothing of how many turns a loop has."""
FURTHEST = 1.5
"""Times the number of another rank."""
MOST_SHOWN = 4

# `rows[rank::world]`, or `number % world == rank`.
SLICED = re.compile(
    r"\[[^\]]*rank[^\]]*::[^\]]*\]|%\s*[\w.()]*(?:world|replicas|ranks)[\w.()]*\s*==\s*[\w.]*rank",
    re.IGNORECASE,
)


def in_the_source(
    script: Script, loading: Loading | None, seen: DataSeen | None
) -> Iterator[Finding]:
    """The script deals items out to the ranks, and trains on all that a rank got."""
    loaders = [one for one in script.of(LOADER) if not evaluates(one)]
    loops = [loop.at.text for loop in script.loops if loop.kind == "training"]
    if (
        (loading is not None and loading.loaders)
        or _joins(script)
        or not is_plain(script)
        or (script.of(LOADER) and not loaders)
        or any("sampler" in name for one in loaders for name in one.keywords)
        or any(re.search(r"\brange\(|\bislice\(|\bcycle\(", text) for text in loops)
        or any(one.iterable for one in script.datasets)
    ):
        return
    own = [loop.at.place for loop in script.loops if loop.kind == "training"]
    counted = {one.at for one in seen.turns if one.turns is not None} if seen is not None else ()
    if any(at.endswith(place) for at in counted for place in own):
        return
    trains = loaders[0].at.place if loaders else own[0] if own else ""
    # A line of the same function cuts what the ranks share to a multiple of them.
    cut = {
        (line.file, line.function)
        for line in script.splits
        if re.search(r"//|(?:\w|\)) % ", line.text) and "[" in line.text
    }
    for line in script.splits if trains else ():
        even = "//" in line.text or (line.file, line.function) in cut
        if EVALUATES.search(line.function.replace("_", " ")):
            continue
        if SLICED.search(line.text) and not even:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{shown(line)} gives the ranks different numbers of items, and the training "
                    f"({trains}) uses all that a rank got: a rank with more batches "
                    "waits at the end of the epoch for one that has finished"
                ),
                fixes=(
                    Fix.python(
                        summary="end the epoch of all ranks with the shortest one",
                        paste=(
                            "batches = torch.tensor(len(loader), device=device)\n"
                            "dist.all_reduce(batches, dist.ReduceOp.MIN)\n"
                            "for batch in itertools.islice(loader, batches.item()):\n"
                            "    ..."
                        ),
                    ),
                ),
            )
            return


def of_files(script: Script, loading: Loading | None) -> Iterator[Finding]:
    """A stream deals files out to the ranks, and each rank trains until its own have ended."""
    loaders = [one for one in script.of(LOADER) if not evaluates(one)]
    loops = [one for one in script.loops if one.kind == "training"]
    open_ended = bool(loops) and all(one.exhausts for one in loops)
    # A run of a few steps does not come to the end of a stream.
    ahead = loading is None or not any(one.epoch_batches for one in loading.loaders)
    if not ahead or _joins(script) or not is_plain(script, "Lightning") or not open_ended:
        return
    for one in script.datasets:
        own = [each for each in loaders if each.origin("dataset", 0) == (one.name,)]
        if one.dealt is not None and own and not one.endless and len(own) == len(loaders):
            yield Finding(
                severity=Severity.WARNING if loading is None else Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"{shown(one.dealt)} deals files out to the ranks, and {shown(loops[0].at)} "
                    "ends on each rank with its own: unless all ranks get as many batches, one "
                    "waits in backward for a rank that has finished"
                ),
                fixes=(
                    _together(f"{loops[0].at.place}, with a number for all ranks"),
                    JOIN,
                ),
            )
            return


def without_even_batches(script: Script, loading: Loading | None) -> Iterator[Finding]:
    """accelerate was asked not to make the ranks' numbers of batches equal."""
    # accelerate/data_loader.py, BatchSamplerShard: then no rank gets what is left over.
    loaders = script.of(LOADER)
    drops = bool(loaders) and all(one.keywords.get("drop_last") == "True" for one in loaders)
    for one in script.calls if loading is None and not _joins(script) and not drops else ():
        if one.name.startswith("accelerate.") and "even_batches=False" in one.at.text:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.POSSIBLE,
                because=f"{shown(one.at)} lets ranks have different numbers of batches, and no "
                "line joins them at the end: a rank with more of them waits for the others",
                fixes=(
                    Fix.python(
                        summary="join the ranks whose data end early",
                        paste="with accelerator.join_uneven_inputs([model]):\n"
                        "    for batch in loader:\n        ...",
                    ),
                ),
            )
            return


def batches_differ(
    loading: Loading,
    wrapping: Wrapping | None,
    steps: Steps | None,
    run: TrainingRun | None,
    script: Script | None,
) -> Iterator[Finding]:
    synced = synchronised(wrapping, steps)
    ends = {one.outcome for one in run.ranks} if run is not None else set()
    # Whom another rank left alone did wait for it, whatever wraps the model.
    waits = run is not None and bool(endings.gone_before(run))
    # If all ranks finished the script, it handles different lengths.
    if (synced is False and not waits) or ends == {"finished"}:
        return
    for name, loaders in by_name(loading).items():
        counts, source = _counts(loaders, run)
        if len(set(counts.values())) < 2:
            continue
        shortest, longest = min(counts.values()), max(counts.values())
        odd = _odd(counts)
        at_least = "at least " if source == SO_FAR else ""
        hung = _left_alone(run, counts) if run is not None else ()
        if script is not None and _joins(script) and not hung:
            continue
        doubt = "; unless all ranks leave the epoch together, some will hang"
        if hung:
            doubt = f", and {endings.ranks(hung)} waited forever for the shorter ones"
            doubt += _standing(run) if run is not None else ""
        yield Finding(
            severity=Severity.ERROR if synced or hung else Severity.WARNING,
            confidence=Confidence.CERTAIN if hung else Confidence.LIKELY,
            because=(
                f"an epoch of the loader at {name} has {shortest} batches on "
                f"{_who(counts, shortest)} and {at_least}{longest} on "
                f"{_who(counts, longest)}{doubt}"
            ),
            evidence=tuple(
                Observation(
                    name=f"batches of an epoch, rank {rank}",
                    value=count,
                    expected=shortest,
                    source=source,
                )
                for rank, count in counts.items()
                if rank in odd or len(counts) == 2
            ),
            where=place(odd, loaders),
            fixes=tuple(_fixes(loaders[0], shortest)),
        )


def loops_differ(
    seen: DataSeen,
    wrapping: Wrapping | None,
    steps: Steps | None,
    run: TrainingRun,
    script: Script | None,
) -> Iterator[Finding]:
    """Loops over what each rank has, without a DataLoader: the run ended within them."""
    ended = {one.outcome for one in run.ranks} == {"stopped"}
    if not ended or synchronised(wrapping, steps) is False:
        return
    if script is not None and _joins(script):
        return
    for at in dict.fromkeys(one.at for one in seen.turns):
        loops = {one.rank: one for one in seen.turns if one.at == at}
        if len(loops) < max(2, len(run.ranks)):
            continue
        for name, counts, sure in _own_numbers(loops):
            shortest, longest = min(counts.values()), max(counts.values())
            loop = f"the loop at {at} (`{next(iter(loops.values())).text}`)"
            has = "has" if sure else f"reads {name}, which is"
            turns = " turns" if sure else ""
            yield Finding(
                severity=Severity.WARNING if sure else Severity.NOTE,
                confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
                because=(
                    f"{loop} {has} {shortest}{turns} on {_who(counts, shortest)} and {longest} on "
                    f"{_who(counts, longest)}; unless all ranks leave it together, some will hang"
                ),
                evidence=tuple(
                    Observation(name=f"{name}, rank {rank}", value=count, expected=shortest)
                    for rank, count in list(counts.items())[:MOST_SHOWN]
                ),
                fixes=(_together(f"{at}: {shortest} now"), JOIN),
            )
            return


def _own_numbers(
    loops: Mapping[int, LoopTurns],
) -> Iterator[tuple[str, Mapping[int, int], bool]]:
    """What differs between the ranks: the turns, for sure, or else a number by its name."""
    turns = {rank: one.turns for rank, one in loops.items() if one.turns is not None}
    if len(turns) == len(loops):
        if len(set(turns.values())) > 1:
            yield "turns", turns, True
        return
    for name in next(iter(loops.values())).numbers:
        given = {rank: one.numbers[name] for rank, one in loops.items() if name in one.numbers}
        if len(given) < len(loops) or len(set(given.values())) < 2 or NO_COUNT.search(name):
            continue
        # Ends of parts in a row are further apart.
        if len(loops) < max(given.values()) <= FURTHEST * min(given.values()):
            yield name, given, False


def finished_earlier(run: TrainingRun, loading: Loading | None) -> Iterator[Finding]:
    """Ranks finished the script while others waited for them in a collective."""
    gone = endings.gone_before(run)
    if not gone or _known(run, loading) or (loading is not None and even(loading)):
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.POSSIBLE if run.only_told else Confidence.LIKELY,
        because=endings.left_alone(run, gone),
        where=Where.of(gone),
        fixes=(JOIN,),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("exhausted-inputs"):
        yield log_events.finding(
            [event],
            "Join found that one rank had no more batches, and ended the others as it was asked to",
            Fix.python(
                summary="let Join wait for the others, or make the epochs equal",
                paste="with Join([model], throw_on_early_termination=False):\n    ...",
                caution="or set drop_last=True in the DistributedSampler and the loader",
            ),
            confidence=Confidence.CERTAIN,
        )


def left_by_the_others(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    """torchrun lists one failure, of a rank that missed another one, and had no process to end."""
    alone = log.first("only-failure")
    waits = [one for one in log.of("watchdog") if one.rank is not None]
    if alone is None or log.of("closing", "exhausted-inputs") or log.several_hosts:
        return
    if run is None or run.failures:
        return
    left = {one.rank for one in run.echoes} | {one.rank for one in waits if one.rank is not None}
    if len(left) != 1:
        return
    if any(one.values.get("number") in ("0", "1") for one in waits):
        return  # Before the first collective, no rank has trained.
    yield log_events.finding(
        [*waits[:1], alone],
        f"{endings.ranks(left)} missed another rank, and "
        "torchrun had no other process on this host to end: unless the others are on another one, "
        "they had ended by themselves, as with fewer batches",
        JOIN,
        confidence=Confidence.POSSIBLE,
        at=Where(),
    )


def in_a_live_run(live: LiveState, script: Script | None) -> Iterator[Finding]:
    ended = [rank.rank for rank in live.gone if rank.finished]
    # A loop over messages is none over batches.
    judged = live.blocked and not live.unmatched
    for loop, behind in _loops(live).items() if judged else ():
        ahead = [rank for rank in live.ranks if rank.has_left(loop, behind[0])]
        if loop.decides or not (ahead or ended):
            continue
        gone = [f"{endings.ranks(ended)} finished the script"] if ended else []
        if ahead:
            have = (
                "have left the loop and wait" if len(ahead) > 1 else "has left the loop and waits"
            )
            gone.append(f"{named(ahead)} {have} {ahead[0].where}")
        still = "are still in it and wait" if len(behind) > 1 else "is still in it and waits"
        left = sorted((*ended, *(rank.rank for rank in ahead)))
        skip = next((row.skipped_at for row in behind[0].seen.activities), None)
        own = _own_skip(loop, script) if skip is None else None
        skips = _skips(skip) if skip is not None else _skips_by(own) if own is not None else ""
        alike = (
            [let_all_decide(own.test, f"{own.at.place}, before the backward pass")]
            if own is not None
            else _alike(skip)
        )
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"loop at {loop.file.rpartition('/')[2]}:{loop.line} (`{loop.text}`): "
                f"{', '.join(gone)}, while {named(behind)} {still} {behind[0].where}; "
                f"{live.standstill}{skips and f'; {skips}'}"
            ),
            evidence=(
                Observation(name="left the loop", value=endings.ranks(left)),
                Observation(name="still in the loop", value=named(behind)),
            ),
            where=Where(ranks=tuple(left)),
            fixes=(*alike, STOP_TOGETHER, JOIN),
        )
        return


def _own_skip(loop: Block, script: Script | None) -> SourceOwnSkip | None:
    """Where the source lets a rank leave out a step in this loop by its own batch."""
    for one in script.own_skips if script is not None else ():
        if not one.ends and loop.file.endswith(one.at.file) and one.at.line > loop.line:
            return one
    return None


def _skips_by(own: SourceOwnSkip) -> str:
    return f"{shown(own.at)} skips a batch if `{own.test}`, by what this rank has"


def _skips(test: Frame) -> str:
    return f"{endings.place(test)}{endings.quoted(test)} skips a batch, by what this rank has"


def _alike(test: Frame | None) -> Iterator[Fix]:
    """By the test that skips a batch, if that is in one line."""
    if test is not None and (found := TEST.match(test.text)):
        yield let_all_decide(found[1], endings.place(test))


def in_a_hung_run(
    run: TrainingRun, loading: Loading | None, script: Script | None
) -> Iterator[Finding]:
    """Ranks left a loop whose batches no DataLoader counts: the script makes them itself."""
    live = seen_live(run)
    rows = by_name(loading).values() if loading is not None else ()
    # Whom a signal ended has not written its last batches.
    killed = any(one.outcome == "killed" for one in run.ranks)
    counted = not killed and any(len(loaders) == len(run.ranks) for loaders in rows)
    told = counted or _known(run, loading) or endings.gone_before(run)
    if live is not None and not told:
        yield from in_a_live_run(live, script)


def _joins(script: Script) -> bool:
    return any("join" in one.name.lower() for one in script.calls)


def _known(run: TrainingRun, loading: Loading | None) -> bool:
    """Whether the numbers of batches are known to differ."""
    rows = by_name(loading).values() if loading is not None else ()
    return any(len(set(_counts(loaders, run)[0].values())) > 1 for loaders in rows)


def _loops(live: LiveState) -> Mapping[Block, Sequence[LiveRankState]]:
    """The loops that some ranks are in and others not, also as they ended, with these ranks.

    All ranks count alike: what left a loop over numbers early has left one within it.
    """
    found = [one for one in live.around if one.loop and (live.gone or one in live.parting)]
    found.sort(key=lambda block: NUMBERS.search(block.text) is not None)
    return {block: live.around[block] for block in found}


def _counts(loaders: Sequence[Loader], run: TrainingRun | None) -> tuple[Mapping[int, int], str]:
    """Batches of each rank in the first epoch in which they differ, and what shows them."""
    if len({one.rank for one in loaders}) < len(loaders):
        return {}, ""
    ended = min(len(one.epoch_batches) for one in loaders)
    for epoch in range(ended):
        counts = {one.rank: one.epoch_batches[epoch] for one in loaders}
        if len(set(counts.values())) > 1:
            return counts, "epochs that ended"
    if run is not None and (begun := _so_far(loaders, ended, run)):
        return begun, SO_FAR
    # Epochs that ended alike on all ranks are even, whatever the lengths are.
    if ended:
        return {}, ""
    lengths = {one.rank: one.batches for one in loaders if one.batches is not None}
    return lengths, "the length of the loader"


def _so_far(loaders: Sequence[Loader], epoch: int, run: TrainingRun) -> Mapping[int, int]:
    """Batches of an epoch that has ended on some ranks, and in which others wait with more."""
    done = {one.rank: one.epoch_batches[epoch] for one in loaders if one.epoch_batches[epoch:]}
    going = {one.rank: one.unended for one in loaders if one.rank not in done}
    shortest = min(done.values(), default=0)
    short = [one for one in loaders if done.get(one.rank) == shortest]
    longer = [rank for rank, count in going.items() if count > shortest]
    return {**done, **going} if short and longer and _apart(run, short, longer) else {}


def _apart(run: TrainingRun, short: Sequence[Loader], longer: Sequence[int]) -> bool:
    """Whether the longer ranks are still in a loop that the short ones have left.

    All ranks may have agreed to leave it, and wait for another reason.
    """
    finished = {one.rank for one in run.ranks if one.outcome == "finished"}
    live = seen_live(run)
    if live is None:
        return bool(endings.gone_before(run)) and {one.rank for one in short} <= finished
    loops = {rank.rank: {block for block in rank.within if block.loop} for rank in live.ranks}
    # A framework's loop is none of the user's lines.
    inside = [loops.get(rank, set()) for rank in longer]
    begun_again = all(one.unended for one in short)
    return begun_again or any(
        not own or own - loops.get(one.rank, set()) for own in inside for one in short
    )


def _standing(run: TrainingRun) -> str:
    """Where the ranks wait, and the loop that only some are in, to follow a sentence."""
    live = seen_live(run)
    loops = [] if live is None else [live.inside(block) for block in live.parting if block.loop]
    return "".join([endings.others(run, ()), *loops[:1]])


def _odd(counts: Mapping[int, int]) -> Sequence[int]:
    """The ranks that differ from the majority; without a majority, those that end first."""
    usual, many = Counter(counts.values()).most_common(1)[0]
    if 2 * many > len(counts):
        return [rank for rank, count in counts.items() if count != usual]
    return [rank for rank, count in counts.items() if count == min(counts.values())]


def _who(counts: Mapping[int, int], count: int) -> str:
    return endings.ranks(sorted(rank for rank, one in counts.items() if one == count))


def _left_alone(run: TrainingRun, counts: Mapping[int, int]) -> Sequence[int]:
    """The longer ranks that hung, or lost their peer, after the shorter ones had continued."""
    shortest = min(counts.values())
    gone = {one.rank for one in run.ranks if one.outcome == "finished"}
    live = seen_live(run)
    stuck = {one.rank for one in run.ranks if one.stood}
    stuck |= {one.rank for one in live.ranks} if live is not None else set()
    waited = sorted(stuck | {one.rank for one in run.ranks if one.echoes})
    short = [rank for rank, count in counts.items() if count == shortest]
    long = [rank for rank in waited if counts.get(rank, shortest) > shortest]
    return long if all(rank in gone | stuck for rank in short) else ()


def _fixes(loader: Loader, shortest: int) -> Iterator[Fix]:
    if loader.kind == "map" and loader.replicas is None:
        yield Fix.python(
            summary="use a sampler that gives each rank the same number of batches",
            paste=(
                "sampler = torch.utils.data.DistributedSampler(dataset, drop_last=True)\n"
                f"DataLoader(dataset, sampler=sampler, drop_last=True, …)  # {loader.name}"
            ),
            caution="a sampler that fills batches by length has its own drop_last to set",
        )
    # A stream has no length.
    sized = loader.batches is not None
    yield _together(f"{loader.name}: {shortest} now") if sized else STOP_TOGETHER
    yield JOIN


def _together(where: str) -> Fix:
    return Fix.python(
        summary="end the epoch on all ranks with the shortest one",
        paste=(
            "count = torch.tensor(len(loader), device=device)  # or a number known beforehand\n"
            "dist.all_reduce(count, op=dist.ReduceOp.MIN)\n"
            f"for batch in itertools.islice(loader, int(count)):  # {where}"
        ),
        caution="the last batches of the longer ranks are left out",
    )


STOP_TOGETHER = Fix.python(
    summary="end the epoch on all ranks as soon as one has no more batches",
    paste=(
        "batches = iter(loader)\n"
        "while True:\n"
        "    batch = next(batches, None)\n"
        "    more = torch.tensor(float(batch is not None), device=device)\n"
        "    dist.all_reduce(more, op=dist.ReduceOp.MIN)\n"
        "    if not more.item():\n"
        "        break"
    ),
    caution="costs a small collective per step; `itertools.islice` with a number that all ranks "
    "know, say the smallest length, needs none",
)
