"""The script itself fails, and no rank, host or network is at fault.

An error on all ranks is an error of the script or of its arguments: a wrong path, a missing key, a
shape that does not fit. No rank is special, and neither the network nor a host is involved. A run
of one process belongs here, too. A framework may catch the exception, print it, and exit by itself.

Symptoms: each rank prints the same traceback or usage message, and torchrun reports exit code 1 or
2 for each of them.

To fix it, correct the line that raises, or the argument that it names.
"""

# Above 150 lines: recorded ranks, logs of programs and of the kernel, and the source.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

from ddoctor.analysis import cuda_oom, endings, log_events
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.known_hardware import KnownXids
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Software
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# The causes of an error that every rank may have.
EXPLAINED_BY = (
    "activation-checkpoint-reentrant",
    "dataloader-fork-unsafe",
    "dataloader-worker-deadlock",
    "ddp-unused-parameters",
    "fsdp-wrap-policy-wrong",
    "host-ram-oom",
    "mismatched-collective-shapes",
    "nccl-buffer-alloc-oom",
    "network-unreachable",
    "nproc-exceeds-visible-gpus",
    "rank-dependent-control-flow",
    "shared-filesystem-race",
    "sharded-forward-not-synced",
    "socket-interface-wrong",
    "uneven-inputs-per-rank",
    "wrong-device-binding",
)

ASSERTION = "index-out-of-table"
ASYNCHRONOUS = "CUDA kernel errors might be asynchronously reported"
MOST_CHARACTERS = 120
"""Of a message in the title."""


def on_all_ranks(run: TrainingRun) -> Iterator[Finding]:
    failed = endings.failed_alike(run)
    if not failed or cuda_oom.read(failed[0].message) is not None:
        return
    first, several = failed[0], len(failed) > 1
    who = f"all {len(failed)} ranks" if several else "the only process of the run"
    if first.spawned is not None:
        who = f"process {first.spawned} that the script starts"
    others = dict.fromkeys(one.words for one in failed[1:] if one.words != first.words)
    yield Finding(
        severity=Severity.ERROR,
        confidence=endings.confidence(first),
        title=_title(first, "All ranks" if several else "The script", several),
        because=(
            f"{who} {endings.went_wrong(first)} after {endings.steps(first)}, {first.time:.1f} s "
            f"after the start{f'; other ranks: {next(iter(others))}' if others else ''}"
            f"{endings.thread(first)}"
        ),
        evidence=(
            Observation(name="exit code", value=first.exit_code or 0),
            Observation(name="message", value=first.words),
        ),
        fixes=(_fix(run, first),),
    )


def in_a_log(run: TrainingRun, log: Log | None) -> Iterator[Finding]:
    """The first exception, where no other rank reports that it misses a rank."""
    failed = run.failures
    if failed and ASYNCHRONOUS in failed[0].message and log is not None and log.of(ASSERTION):
        return  # the kernel's own message says more
    if not endings.raised_alone(run) or cuda_oom.read(failed[0].message) is not None:
        return
    first = next((one for one in failed if one.exception), failed[0])
    alike = [one for one in failed if one.words == first.words]
    who = endings.ranks([one.rank for one in alike]) if first.rank >= 0 else "a process"
    more = len(failed) - len(alike)
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.POSSIBLE,
        title=_title(first, "The script", several=False),
        because=f"{who} {endings.went_wrong(first)}{endings.of_several(run, more + 1)}, according "
        f"to {run.log}",
        where=Where.of(alike) if first.rank >= 0 else Where(),
        fixes=(_fix(run, first),),
    )


def illegal_access_in_a_kernel_log(log: Log, known: KnownXids) -> Iterator[Finding]:
    """What the driver reports of a kernel of the program: no fault of the GPU."""
    for event in log.of("xid"):
        xid = known.get(int(event.values["code"]))
        if xid is None or (xid.blames, xid.remedy) != ("application", "restart-run"):
            continue
        found = log_events.finding(
            [event],
            f"Xid {xid.code} is {xid.title}, by a kernel of the program that the line names; the "
            "GPU is not at fault",
            Fix(
                summary="find the kernel and its line: these are slow, so with few steps",
                paste="CUDA_LAUNCH_BLOCKING=1 python train.py\n"
                "compute-sanitizer --tool memcheck python train.py",
            ),
            severity=Severity.NOTE,
        )
        yield replace(found, title="A kernel of the program accesses GPU memory out of bounds")
        return


def does_not_parse(
    script: Script, launch: Launch | None, software: Software | None
) -> Iterator[Finding]:
    """A source that the Python of ddoctor refuses."""
    # Another machine or image may have a Python that knows more.
    if not script.broken or (launch is not None and launch.get("elsewhere") is not None):
        return
    first, itself = script.broken[0], not script.files
    python = " ".join(("Python", software.python if software is not None else "")).strip()
    # A module may be imported where its failure is expected.
    yield Finding(
        severity=Severity.ERROR if itself else Severity.WARNING,
        confidence=Confidence.LIKELY if itself else Confidence.POSSIBLE,
        title=f"A syntax error in {first.file}",
        because=f"{shown(first)} is no syntax of {python}: the script stops "
        f"{'at once' if itself else 'when it imports this file'}",
        evidence=(Observation(name="file", value=first.file, source=first.place),),
        fixes=(Fix(summary="correct the line", paste=f"python -m py_compile {quote(first.file)}"),),
    )


def _title(first: RankEnding, subject: str, several: bool) -> str:
    s = "" if several else "s"
    words = first.words[:MOST_CHARACTERS] + "…" * (len(first.words) > MOST_CHARACTERS)
    if first.exception:
        return f"{subject} raise{s} {words}"
    return f"{subject} exit{s} with code {first.exit_code}{f': {words}' if words else ''}"


def _fix(run: TrainingRun, first: RankEnding) -> Fix:
    if ASYNCHRONOUS in first.message:
        return Fix(
            summary="run it once with CUDA_LAUNCH_BLOCKING=1, which names the line that failed: "
            "the GPU reports errors later, so the line above may be another",
            paste=f"CUDA_LAUNCH_BLOCKING=1 {endings.again(run)}",
            caution="slower; leave it out afterwards",
        )
    if first.exception or not first.message:
        return Fix(
            summary=f"correct the error{endings.at(first.place)}",
            paste=endings.traceback(first),
            language="text",
        )
    return Fix(
        summary="correct the arguments or the condition that the message names",
        paste=f"# {first.words}\n{endings.again(run)}",
    )
