"""Rank 0 does work beside the training that no other rank does, and all of them wait for it.

Validation, pictures, uploads or a progress report under ``if rank == 0`` seem to cost one rank. But
the next collective begins when the last rank has come, so each second of it is a second of the
whole job, and the more ranks there are, the more it costs.

Seen from outside: every so many steps one takes much longer; the GPUs of all ranks but the first
are at 100 % meanwhile, since they spin in the collective.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, live_ranks, live_stragglers
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.stragglers import PARTS, Straggler, Stragglers, own_line
from ddoctor.evidence.steps import HotLine, Lines, Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)


def beside_the_training(late: Stragglers, steps: Steps, lines: Lines | None) -> Iterator[Finding]:
    for one in late.found:
        if one.place.rank == 0 and one.part in ("evaluation", "rest"):
            yield _finding(one, steps, own_line(lines, 0, PARTS[one.part], 0.0))


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler
    if found is None or not found.beside_the_training or not found.again:
        return
    line = found.line
    text = endings.quoted(line)
    what = "works outside of the model" if found.activity == "rest" else f"is in {found.activity}"
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"{found.rank.who} {what} for {found.share:.0%} of the time longer "
            f"than the others, mostly at {endings.place(line) or 'a line of no file'}{text}, "
            f"{live_stragglers.others_wait(found, live.ranks)}"
        ),
        evidence=live_stragglers.waits(live.ranks),
        where=Where(hosts=(found.rank.host,), ranks=(0,)),
        cost=Cost(value=round(found.lost, 2), unit="share of step"),
        fixes=(
            _beside(f"{line.file.rpartition('/')[2]}:{line.line}" if line else ""),
            *(live_ranks.way_there(found.rank, found.calls) if found.calls else ()),
        ),
    )


def _finding(one: Straggler, steps: Steps, line: HotLine | None) -> Finding:
    what = "in evaluation" if one.part == "evaluation" else "outside of the model"
    where = f", mostly at {line.file}:{line.line}, `{line.text}`" if line is not None else ""
    others = "the other rank waits" if len(steps.ranks) == 2 else "all the other ranks wait"
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY if line is None else Confidence.CERTAIN,
        because=(
            f"rank 0 spends {1000 * one.seconds:.3g} ms of a step of {1000 * steps.step:.3g} ms "
            f"{what} (mean; in {one.behind} of {one.steps} steps){where}, while {others}"
        ),
        evidence=(
            Observation(
                name=f"{one.part} in a step, rank 0",
                value=round(1000 * (one.usual + one.seconds), 2),
                unit="ms",
                expected=round(1000 * one.usual, 2),
                source=f"the usual of {len(steps.ranks)} ranks",
            ),
        ),
        where=Where(hosts=(one.place.host,), ranks=(0,)),
        cost=Cost(value=round(one.cost, 3), unit="share of step"),
        fixes=(
            _spread()
            if one.part == "evaluation"
            else _beside(f"{line.file}:{line.line}" if line is not None else ""),
        ),
    )


def _spread() -> Fix:
    return Fix(
        summary="evaluate on all ranks, each on its own part of the data",
        paste=(
            "sampler = DistributedSampler(validation_set, shuffle=False)\n"
            "loader = DataLoader(validation_set, batch_size=batch_size, sampler=sampler)\n"
            "sums = torch.zeros(2, device=device)\n"
            "model.eval()\n"
            "with torch.no_grad():\n"
            "    for inputs, targets in loader:\n"
            "        right = (model(inputs.to(device)).argmax(1) == targets.to(device)).sum()\n"
            "        sums += torch.stack((right, torch.tensor(len(targets), device=device)))\n"
            "model.train()\n"
            "dist.all_reduce(sums)\n"
            "accuracy = sums[0] / sums[1]"
        ),
        language="python",
        caution=(
            "DistributedSampler repeats some samples where the ranks do not divide them evenly; "
            "or evaluate less often"
        ),
    )


def _beside(line: str) -> Fix:
    return Fix(
        summary=(
            f"take {line or 'what rank 0 does there'} out of the step: less often, and in a thread "
            "beside it"
        ),
        paste=(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "\n"
            "beside = ThreadPoolExecutor(max_workers=1)\n"
            "\n"
            "if rank == 0 and step % 500 == 0:\n"
            "    state = {name: one.detach().clone() for name, one in model.state_dict().items()}\n"
            "    beside.submit(report, step, state)  # report(step, state) does what is slow"
        ),
        language="python",
        caution="what computes in Python holds the interpreter's lock: then take a process",
    )
