"""Several ranks create, move or delete the same file at the same moment.

All ranks run the same lines: create a checkpoint folder, download a file, write a cache, rename a
temporary file at the end. On one machine, or on a shared file system, the first rank succeeds. The
next rank finds a folder that already exists, or a file that is gone. Microseconds decide, so the
same script mostly works.

Symptoms: "File exists", "No such file or directory" or "Directory not empty" on some ranks, at a
line that creates, moves or deletes a file.

To fix it, let one rank do it while the others wait in a barrier, or use ``exist_ok=True`` and a
different name per rank.
"""

# Above 150 lines: a run, a log, and two mistakes of the source.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_source import WRAPPERS, is_plain, shown, trains
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SAVES, SourceCall
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")

# Errors of the kernel if another process was faster, errno(3).
MADE = re.compile(r"\[Errno (17|39)\]")  # EEXIST, ENOTEMPTY
GONE = re.compile(r"\[Errno 2\]")  # ENOENT
MAKES = re.compile(r"\b(mkdir|makedirs|symlink|link|rename|replace|move|rmtree|rmdir|copytree)\b")
# Opening a file that never existed is a different error.
TAKES = re.compile(r"\b(rename|renames|replace|move|rmtree|unlink|remove|removedirs|rmdir)\b")
# Words of a path that may differ between ranks.
VARIES = re.compile(
    r"rank|local|gpu|device|proc|pid|uuid|tmp|temp|host|node|worker|time|\bi?d\b", re.I
)
OF_PROCESS = re.compile(r"rank|mkdtemp|tempfile|uuid|getpid", re.I)
# Objects of transformers that save a few small files, which nobody misses for a moment.
SMALL = re.compile(r"token|processor|config|extractor", re.I)
# Library frames below the user's line, for example in shutil.
INNERMOST = 3


def from_training(run: TrainingRun) -> Iterator[Finding]:
    losers = [one for one in run.failures if _lost_the_race(one)]
    # If all ranks fail, the file state is older than the run.
    if not losers or (len(losers) == len(run.ranks) and not run.log):
        return
    first = losers[0]
    subject = endings.who(first) if len(losers) == 1 else endings.ranks(one.rank for one in losers)
    at = f" at {endings.place(first.place)}{endings.quoted(first.place)}," if first.place else ""
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY if first.stack else Confidence.POSSIBLE,
        because=(
            f"{subject} raised {first.words}{at} {endings.when(run, first)}: another rank did the "
            f"same just before{endings.others(run, losers)}"
        ),
        evidence=tuple(
            Observation(name=f"error of {endings.who(one)}", value=one.words) for one in losers[:4]
        ),
        where=Where.of(losers),
        fixes=(
            Fix.python(
                summary="let one rank do it while the others wait",
                paste=(
                    "if torch.distributed.get_rank() == 0:\n"
                    f"    {first.place.text if first.place is not None else '...'}\n"
                    "torch.distributed.barrier()"
                ),
                caution="on file systems that hosts do not share, use one rank per host",
            ),
            Fix.python(
                summary="or accept an existing folder, and use a different working name per rank",
                paste=(
                    "os.makedirs(path, exist_ok=True)\n"
                    'working = f"{path}.{torch.distributed.get_rank()}"'
                ),
            ),
        ),
    )


def in_a_log(log: Log, run: TrainingRun | None) -> Iterator[Finding]:
    gone = [one for one in run.ranks if GONE.search(one.message)] if run is not None else []
    for event in log.of("removing") if gone else ():
        same = [one for one in log.of("removing") if one.values == event.values]
        if len({one.rank for one in same} - {None}) > 1:
            yield log_events.finding(
                same,
                f"several ranks remove the checkpoint of step {event.values['step']}, and what one "
                "has removed the others no longer find",
                Fix.python(
                    summary="let one rank remove it while the others wait",
                    paste="if torch.distributed.get_rank() == 0:\n    shutil.rmtree(checkpoint)\n"
                    "torch.distributed.barrier()",
                ),
            )
            return
    if moved := log.first("folder-race"):
        yield log_events.finding(
            [moved],
            "several processes rename or delete the same folder",
            Fix.python(
                summary="let one process move files that all ranks share",
                paste="if rank == 0:\n    os.replace(temporary, final)\ndist.barrier()",
            ),
            confidence=Confidence.POSSIBLE,
        )


def in_the_source(script: Script) -> Iterator[Finding]:
    if not is_plain(script):
        return
    shared = {one.at: one.moved for one in script.shared_files}
    for save in script.of(*SAVES):
        named_by = SAVES[save.name]
        told = save.keywords.get("is_main_process", "True") != "True"
        if told or not save.on_all_ranks or SMALL.search(save.on):
            continue
        if _is_one_file(save, named_by) or save.at in shared:
            path = save.argument(*named_by) or ""
            named = path if {*path} & {*"'\""} else "its path"
            moved = shared.get(save.at)
            literal = all(one.startswith(("'", '"')) for one in save.origin(*named_by))
            sure = literal or moved is not None
            then = f"; {shown(moved)} on one rank takes it away from the others" if moved else ""
            also = f"    {moved.text}\n" if moved else ""
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
                because=(
                    f"all ranks write the same file at {shown(save.at)}: nothing around the line "
                    f"tests the rank, and nothing in {named} depends on it{then}"
                ),
                fixes=(
                    Fix.python(
                        summary="let rank 0 write it while the others wait",
                        paste=(
                            "if torch.distributed.get_rank() == 0:\n"
                            f"    {save.at.text}\n"
                            f"{also}"
                            "torch.distributed.barrier()"
                        ),
                        caution="a state_dict() of FSDP must stay on all ranks, before the branch",
                    ),
                ),
            )
            return


OF_VISION = "torchvision.datasets."


def all_ranks_prepare(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """All ranks delete a folder, or write a dataset into it."""
    joins = any(one.name.startswith("torch.distributed.") for one in script.calls)
    if (plan.ranks or 0) < 2 or not trains(script) or not (joins or script.imports):
        return
    for one in script.of("shutil.rmtree", ".save_to_disk"):
        named = one.arguments[0] if one.arguments else ""
        own = OF_PROCESS.search(f"{named} {one.values.get('0', '')}") is not None
        tolerant = one.keywords.get("ignore_errors") == "True"
        if one.on_all_ranks and named and not own and not tolerant:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"all {plan.ranks} ranks run {shown(one.at)}: one deletes or overwrites what "
                    "another one reads"
                ),
                fixes=(
                    Fix.python(
                        summary="prepare it once before the run, or on one rank while others wait",
                        paste=(
                            "if int(os.environ['RANK']) == 0:\n"
                            f"    {one.at.text}\n"
                            "torch.distributed.barrier()"
                        ),
                    ),
                ),
            )
            return


def read_before_it_is_written(script: Script, run: TrainingRun | None) -> Iterator[Finding]:
    """One rank saves a file, and the others read it without waiting for that."""
    for one in script.read_too_early[:1] if is_plain(script) else ():
        failed = [
            each
            for each in (run.failures if run is not None else ())
            if any(map(one.at.holds, each.stack))
        ]
        raised = "".join(f"{_raiser(each)} raised {each.words}: " for each in failed[:1])
        yield Finding(
            severity=Severity.ERROR if failed else Severity.WARNING,
            confidence=Confidence.CERTAIN if failed else Confidence.LIKELY,
            because=(
                f"{raised}all ranks read at {shown(one.at)} what one rank saves at "
                f"{shown(one.save)}, and nothing lets them wait for it: they may find no file, an "
                "old one, or half of it"
            ),
            where=Where.of(failed) if len(run.ranks if run is not None else ()) > 1 else Where(),
            fixes=(
                Fix.python(
                    summary="let all ranks wait until the file is complete",
                    paste=f"torch.distributed.barrier()\n{one.at.text}",
                ),
            ),
        )


def all_ranks_download(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """All ranks download and unpack a dataset of torchvision, if it is not there yet."""
    for one in script.calls if (plan.ranks or 0) > 1 and script.of(*WRAPPERS) else ():
        downloads = one.name.startswith(OF_VISION) and one.argument("download") == "True"
        if downloads and one.on_all_ranks and not one.test:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"all {plan.ranks} ranks run {shown(one.at)}: without the files, all "
                "download and unpack them at the same time",
                fixes=(
                    Fix.python(
                        summary="download on one rank of each host while the others wait",
                        paste=(
                            "if local_rank == 0:\n"
                            f"    {one.at.text}\n"
                            "torch.distributed.barrier()\n"
                            "# then the same line on all ranks, with download=False"
                        ),
                    ),
                ),
            )
            return


def _raiser(one: RankEnding) -> str:
    return endings.who(one) if one.spawned is None else f"process {one.spawned}"


def _lost_the_race(one: RankEnding) -> bool:
    words = " ".join(f"{frame.function} {frame.text}" for frame in one.stack[-INNERMOST:])
    return bool(
        # A log may have the error's last lines alone.
        (MADE.search(one.message) and (MAKES.search(words) or not one.stack))
        or (GONE.search(one.message) and TAKES.search(words))
    )


def _is_one_file(save: SourceCall, named_by: tuple[str, int]) -> bool:
    """Whether a literal names the file, and no part of its path can depend on the rank."""
    keyword, position = named_by
    values = save.values.get(keyword, save.values.get(str(position), ""))
    made = (*save.origin(*named_by), values)
    path = save.argument(*named_by) or ""
    named = re.search(r"""\.\w{1,10}['"]""", " ".join((path, *made)))
    return named is not None and VARIES.search(f"{path} {' '.join(made)}") is None
