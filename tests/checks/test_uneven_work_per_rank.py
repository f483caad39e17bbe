from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader

from ddoctor import engine
from ddoctor.evidence.live import Activity, LiveRank
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.source_facts import SourceSortedShare
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Severity
from tests.conftest import Findings
from tests.live_look import TRAINING, look, moving
from tests.training_run import user
from tests.training_steps import COUNT, USUAL, steps, with_more

CAUSE = "uneven-work-per-rank"
EACH = 5e-5
TOKENS = 3000


def of_tokens(*tokens: list[int], noise: float = 0.03, delay: float = 0.0) -> Steps:
    """Ranks whose forward takes as long as their tokens ask for, the last one longer by a delay."""
    ranks = [
        with_more("forward", [EACH * one + (delay if row is tokens[-1] else 0) for one in row])
        for row in tokens
    ]
    return steps(*ranks, noise=noise, elements=tokens)


def drawn(seed: int, spread: float) -> list[int]:
    random = Random(seed)
    return [int(TOKENS * random.lognormvariate(0, spread)) for _ in range(COUNT)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_shuffled_lengths(findings: Findings, ranks: int) -> None:
    (finding,) = findings(CAUSE, of_tokens(*(drawn(seed, 0.6) for seed in range(ranks))))
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == ()
    assert "this rank changes from step to step" in finding.because
    assert finding.cost is not None
    assert finding.cost.value > 0.1


@pytest.mark.parametrize("longer", [1.5, 1.3])
def test_one_rank_always_has_more(findings: Findings, longer: float) -> None:
    tokens = [TOKENS] * COUNT, [int(longer * TOKENS)] * COUNT
    (finding,) = findings(CAUSE, of_tokens(*tokens))
    assert finding.where.ranks == (1,)
    assert f"{longer - 1:.0%} more numbers" in finding.because


def test_a_little_more_is_a_note(findings: Findings) -> None:
    tokens = [TOKENS] * COUNT, [int(1.12 * TOKENS)] * COUNT
    (finding,) = findings(CAUSE, of_tokens(*tokens))
    assert finding.severity is Severity.NOTE
    assert finding.where.ranks == (1,)


def test_more_samples(findings: Findings) -> None:
    ranks = [with_more("forward", 0.004 * count) for count in (12, 8, 8)]
    section = steps(*ranks, samples=[[count] * COUNT for count in (12, 8, 8)])
    (finding,) = findings(CAUSE, section)
    assert finding.where.ranks == (0,)
    assert "drop_last=True" in finding.fixes[0].paste


def test_the_trainer_of_transformers_has_a_switch_for_it(findings: Findings) -> None:
    run = TrainingRun(command=("train.py",), seconds=10.0, ranks=(), framework="transformers")
    (finding,) = findings(CAUSE, of_tokens(drawn(0, 0.6), drawn(1, 0.6)), run)
    assert 'train_sampling_strategy="group_by_length"' in finding.fixes[0].paste


def test_it_is_told_in_place_of_the_straggler() -> None:
    section = of_tokens([TOKENS] * COUNT, [2 * TOKENS] * COUNT)
    assert [one.cause for one in engine.examine(Evidence([section]), "run").findings] == [CAUSE]


def test_both_are_told_where_a_rank_is_slow_besides() -> None:
    section = of_tokens(*(drawn(seed, 0.6) for seed in range(4)), delay=0.1)
    found = engine.examine(Evidence([section]), "run").findings
    assert {one.cause for one in found} == {CAUSE, "straggler-rank"}


def test_the_sampler_to_paste_gives_like_lengths_to_all_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, of_tokens(drawn(0, 0.6), drawn(1, 0.6)))
    lengths = drawn(2, 0.6) * 10
    taken = []
    for rank in range(2):
        names: dict[str, Any] = {"torch": torch, "DataLoader": DataLoader, "dataset": lengths}
        names |= {"lengths": lengths, "batch_size": 8, "rank": rank, "world_size": 2}
        exec(finding.fixes[0].paste, names)
        taken.append([batch.tolist() for batch in names["loader"]])
    assert len(taken[0]) == len(taken[1]) == len(lengths) // 16
    apart = [abs(sum(a) - sum(b)) / sum(a) for a, b in zip(*taken, strict=True)]
    assert sum(apart) / len(apart) < 0.1


SORTED = Script(
    files=("train.py",),
    sorted_shares=(
        SourceSortedShare(
            at=SourceLine(file="train.py", line=9, text="mine = order[rank * n:(rank + 1) * n]"),
            sorts=SourceLine(file="train.py", line=7, text="order = sorted(texts, key=len)"),
        ),
    ),
)
WAITING = {"forward": 20, "backward-or-wait": 65, "optimizer": 10, "rest": 5}
LATE = {"forward": 70, "backward-or-wait": 20, "optimizer": 8, "rest": 2}
SLOW = look(moving(0, WAITING, asleep=0.6), moving(1, LATE, asleep=0.05))


def test_parts_in_a_row_of_sorted_data(findings: Findings) -> None:
    (finding,) = findings(CAUSE, SORTED)
    assert finding.severity is Severity.WARNING
    assert "train.py:7 (`order = sorted(texts, key=len)`) sorts the data" in finding.because


def test_the_live_rank_with_the_longest_samples(findings: Findings) -> None:
    (finding,) = findings(CAUSE, SORTED, SLOW)
    assert finding.where.ranks == (1,)
    assert finding.cost is not None
    assert finding.cost.value > 0.4
    assert findings("straggler-rank", SORTED, SLOW) == ()
    assert findings("straggler-rank", SLOW) != ()


LONG = {"forward": 48, "backward-or-wait": 48, "optimizer": 4}
SHORT = {"forward": 15, "backward-or-wait": 80, "optimizer": 5}


def computing(number: int, met: dict[str, int], cpu: float, **more: Any) -> LiveRank:
    """A rank of a look of 10 s with so many CPU seconds."""
    asleep = more.pop("asleep", 1 - cpu / 10)
    return replace(moving(number, met, asleep=asleep), cpu_seconds=cpu, **more)


def test_a_live_rank_that_computes_more_of_both_passes(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(computing(0, SHORT, 3.8), computing(1, LONG, 9.6)))
    assert finding.where.ranks == (1,)
    assert finding.severity is Severity.WARNING
    assert "computes 2.4 times as long as the others in the forward and in the backward pass" in (
        finding.because
    )


@pytest.mark.parametrize(
    ("short", "long"),
    [
        pytest.param((SHORT, 3.8), (LONG | {"forward": 18, "rest": 30}, 9.6), id="one pass"),
        pytest.param((SHORT, 8.0), (LONG, 9.6), id="fewer threads, and as many CPU seconds"),
        pytest.param((TRAINING, 9.0), (LONG, 9.6), id="nobody waits"),
    ],
)
def test_quiet_about_live_ranks(
    findings: Findings, short: tuple[Any, float], long: tuple[Any, float]
) -> None:
    first = computing(0, *short, asleep=0.62 if short[0] is SHORT else 0.1)
    assert findings(CAUSE, look(first, computing(1, *long))) == ()


def test_quiet_about_the_stages_of_a_pipeline(findings: Findings) -> None:
    long = computing(1, LONG, 9.6)
    hands_on = Activity(name="collective", samples=2, makes="_wait_batch_p2p")
    staged = replace(long, activities=(*long.activities, hands_on))
    assert findings(CAUSE, look(computing(0, SHORT, 3.8), staged)) == ()


def test_quiet_about_a_live_rank_that_is_kept_from_its_cpu(findings: Findings) -> None:
    """Both passes take longer, and half of that it waits in the run queue."""
    kept = replace(computing(1, LONG, 9.6), main_cpu_seconds=5.0)
    assert findings(CAUSE, look(computing(0, SHORT, 3.8), kept)) == ()


def test_quiet_about_a_live_rank_with_a_line_that_no_other_runs(findings: Findings) -> None:
    own = replace(moving(1, LONG, asleep=0.04, line=user(70, "slow()", "Net.forward")))
    other = computing(0, SHORT, 3.8)
    assert findings(CAUSE, look(other, replace(own, cpu_seconds=9.6))) == ()


def test_quiet_about_sorted_data_where_no_rank_is_slower(findings: Findings) -> None:
    even = look(moving(0, LATE, asleep=0.05), moving(1, LATE, asleep=0.05))
    assert findings(CAUSE, SORTED, even) == ()
    assert findings(CAUSE, SORTED, of_tokens([TOKENS] * COUNT, [TOKENS] * COUNT)) == ()


@pytest.mark.parametrize(
    "section",
    [
        of_tokens([TOKENS] * COUNT, [TOKENS] * COUNT),
        of_tokens(drawn(0, 0.02), drawn(1, 0.02)),
        # In buckets: different from step to step, alike on all ranks.
        of_tokens(drawn(0, 0.6), drawn(0, 0.6)),
        # Different amounts that take no time of their own.
        steps(USUAL, USUAL, noise=0.1, elements=(drawn(0, 0.6), drawn(1, 0.6))),
        # A slow rank with the same work, and with a little more.
        of_tokens([TOKENS] * COUNT, [TOKENS] * COUNT, delay=0.1),
        of_tokens([TOKENS] * COUNT, [int(1.12 * TOKENS)] * COUNT, delay=0.2),
        of_tokens(drawn(0, 0.6)),
        steps(USUAL, with_more("forward", 0.1)),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()
