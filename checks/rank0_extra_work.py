"""Rank 0 does extra work (logging, evaluation, saving) while all other ranks wait.

Validation, plots, uploads or a progress report under ``if rank == 0`` seem to cost one rank only.
But the next collective starts when the last rank arrives, so each second on rank 0 is a second of
the whole job. The more ranks there are, the more it costs.

Symptoms: at regular steps, one takes much longer. Meanwhile the GPUs of all ranks but the
first show 100 %, since they spin in the collective.

To fix it, divide an evaluation among all ranks, do the rest less often, or do it in a background
thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.live_ranks import way_there
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.live_stragglers import IN_MODEL
from ddoctor.analysis.stragglers import PARTS, Stragglers, extra_work, few, own_line, parting
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.models import Confidence, Cost, Finding, Fix, Severity, Where

EXPLAINS = ("scaling-efficiency-low",)


def beside_the_training(late: Stragglers, steps: Steps, lines: Lines | None) -> Iterator[Finding]:
    for one in late.found:
        if one.place.rank != 0 or not extra_work(one, steps, lines):
            continue
        line = own_line(lines, 0, PARTS[one.part], 0.0)
        what = "in evaluation" if one.part == "evaluation" else "outside the model"
        begin = parting(lines, 0, line) if line is not None else None
        at = f"{begin.file}:{begin.line}" if begin is not None else ""
        where = f", mostly at {at}, `{begin.text}`" if begin is not None else ""
        others = "the other rank waits" if len(steps.ranks) == 2 else "all the other ranks wait"
        yield Finding(
            severity=live_cost.severity(one.cost) if few(steps) else Severity.WARNING,
            confidence=Confidence.LIKELY if line is None else Confidence.CERTAIN,
            because=(
                f"rank 0 spends {1000 * one.seconds:.3g} ms of a step of "
                f"{1000 * steps.step:.3g} ms {what} (mean; in {one.behind} of {steps.count} steps)"
                f"{where}, while {others}"
            ),
            evidence=(one.observation(steps),),
            where=Where(hosts=(one.place.host,), ranks=(0,)),
            cost=Cost(value=round(one.cost, 3), unit="share of step"),
            fixes=(_SPREAD if one.part == "evaluation" else _in_the_background(at),),
        )


def in_a_live_run(live: LiveState) -> Iterator[Finding]:
    found = live.straggler or live.repeated
    if found is None or not found.extra_work:
        return
    line = found.begin or found.line
    what = "works outside the model" if found.activity == "rest" else f"is in {found.activity}"
    fix = (
        _SPREAD
        if found.activity in (*IN_MODEL, "evaluation")
        else _in_the_background(f"{line.file.rpartition('/')[2]}:{line.line}" if line else "")
    )
    yield Finding(
        severity=live_cost.severity(found.lost),
        confidence=Confidence.LIKELY,
        because=(
            f"{found.rank.who} {what} for {found.share:.0%} of the time longer "
            f"than the others, mostly at {endings.place(line) or 'an unknown line'}"
            f"{endings.quoted(line)}, {found.others_wait}"
        ),
        evidence=found.waits,
        where=Where.of([found.rank]),
        cost=Cost(value=round(found.lost, 2), unit="share of step"),
        fixes=(
            fix,
            *(way_there(found.rank, found.calls) if found.calls else ()),
        ),
    )


_SPREAD = Fix.python(
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
    caution=(
        "DistributedSampler repeats some samples if the ranks do not divide them evenly; "
        "or evaluate less often"
    ),
)


def _in_the_background(line: str) -> Fix:
    return Fix.python(
        summary=(
            f"move {line or 'this work of rank 0'} out of the step: do it less often, and in a "
            "background thread"
        ),
        paste=(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "\n"
            "background = ThreadPoolExecutor(max_workers=1)\n"
            "\n"
            "if rank == 0 and step % 500 == 0:\n"
            "    state = {name: one.detach().clone() for name, one in model.state_dict().items()}\n"
            "    background.submit(report, step, state)  # report(step, state) does the slow work"
        ),
        caution="heavy Python code holds the GIL: use a process for it",
    )
