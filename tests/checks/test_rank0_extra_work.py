from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddoctor import engine
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.steps import Lines, Steps
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.live_look import LINE, TRAINING, look, moving
from tests.training_run import user
from tests.training_steps import COUNT, USUAL, every, lines, steps, with_more

CAUSE = "rank0-extra-work"
BACKWARD = ("backward", 21, "loss.backward()")


@pytest.mark.parametrize("ranks", [2, 8])
def test_pictures_every_few_steps(findings: Findings, ranks: int) -> None:
    section = steps(with_more("rest", every(5, 0.3)), *[USUAL] * (ranks - 1), noise=0.05)
    (finding,) = findings(CAUSE, section)
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (0,)
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.06 / 0.165, abs=0.03)


def test_the_line_is_named(findings: Findings) -> None:
    draws = ("rest", 77, 'figure.savefig("weights.png")')
    met = lines({BACKWARD: 60, draws: 20}, {BACKWARD: 95})
    (finding,) = findings(CAUSE, steps(with_more("rest", 0.05), USUAL), met)
    assert "train.py:77" in finding.because
    assert "train.py:77" in finding.fixes[0].summary
    assert finding.confidence is Confidence.CERTAIN


def test_the_line_where_it_parts_from_the_others(findings: Findings) -> None:
    """Where it works is in the model, which all ranks call."""
    main, evaluates = (
        msgspec.structs.replace(user(line, text, "train"), file="train.py")
        for line, text in ((9, "main()"), (77, "right = check(model)"))
    )
    met = lines({BACKWARD: 60, ("rest", 5, "x = self.pool(x)"): 30}, {BACKWARD: 95})
    first, other = met.ranks
    hot = msgspec.structs.replace(first.lines[1], calls=(main, evaluates))
    trained = msgspec.structs.replace(other.lines[0], calls=(main,))
    met = Lines(
        ranks=(
            msgspec.structs.replace(first, lines=(first.lines[0], hot)),
            msgspec.structs.replace(other, lines=(trained,)),
        )
    )
    (finding,) = findings(CAUSE, steps(with_more("rest", 0.05), USUAL), met)
    assert "mostly at train.py:77, `right = check(model)`" in finding.because


def test_validation(findings: Findings) -> None:
    section = steps(with_more("evaluation", 0.02), with_more("evaluation", 0.0), noise=0.05)
    (finding,) = findings(CAUSE, section)
    assert "in evaluation" in finding.because
    assert "all_reduce(sums)" in finding.fixes[0].paste


def test_an_evaluation_runs_lines_that_all_ranks_train_with(findings: Findings) -> None:
    evaluates = msgspec.structs.replace(user(77, "check(model)", "train"), file="train.py")
    layer = (5, "x = self.layer(x)")
    met = lines({BACKWARD: 60, ("evaluation", *layer): 30}, {BACKWARD: 55, ("forward", *layer): 40})
    first, other = met.ranks
    hot = msgspec.structs.replace(first.lines[1], calls=(evaluates,))
    first = msgspec.structs.replace(first, lines=(first.lines[0], hot))
    section = steps(with_more("evaluation", 0.05), with_more("evaluation", 0.0))
    (finding,) = findings(CAUSE, section, Lines(ranks=(first, other)))
    assert "mostly at train.py:77, `check(model)`" in finding.because


SORTS = ("rest", 30, "shown = meter.median()")


def test_quiet_where_all_ranks_do_it() -> None:
    """Rank 0 takes longer for it, so it is a straggler."""
    section = steps(with_more("rest", 0.03), with_more("rest", 0.01), with_more("rest", 0.01))
    met = lines({BACKWARD: 60, SORTS: 25}, {BACKWARD: 80, SORTS: 10}, {BACKWARD: 80, SORTS: 9})
    causes = [one.cause for one in engine.examine(Evidence([section, met]), "run").findings]
    assert CAUSE not in causes
    assert "straggler-rank" in causes


def test_a_call_of_its_own_to_what_all_ranks_do(findings: Findings) -> None:
    main, own = (
        msgspec.structs.replace(user(line, text, "train"), file="train.py")
        for line, text in ((9, "main()"), (77, "show(model)"))
    )
    met = lines({BACKWARD: 60, SORTS: 25}, {BACKWARD: 80, SORTS: 10})
    first, other = met.ranks
    hot = msgspec.structs.replace(first.lines[1], calls=(main, own))
    usual = [msgspec.structs.replace(one, calls=(main,)) for one in other.lines]
    met = Lines(
        ranks=(
            msgspec.structs.replace(first, lines=(first.lines[0], hot)),
            msgspec.structs.replace(other, lines=tuple(usual)),
        )
    )
    section = steps(with_more("rest", 0.03), with_more("rest", 0.01))
    assert len(findings(CAUSE, section, met)) == 1


def test_it_is_told_in_place_of_the_straggler() -> None:
    section = steps(with_more("rest", 0.06), USUAL, USUAL)
    assert [one.cause for one in engine.examine(Evidence([section]), "run").findings] == [CAUSE]


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL, noise=0.2),
        # All ranks do it, another one does it, it is small, it came once.
        steps(*[with_more("rest", every(5, 0.3))] * 2),
        steps(*[with_more("evaluation", every(10, 1.0))] * 2),
        steps(USUAL, with_more("rest", 0.06)),
        steps(with_more("rest", every(10, 0.05)), USUAL),
        steps(with_more("rest", every(COUNT, 2.0)), USUAL),
        # Causes of their own.
        steps(with_more("forward", 0.06), USUAL),
        steps(with_more("loader", 0.06), USUAL),
        steps(
            with_more("rest", every(5, 0.3), with_more("checkpoint", every(5, 0.1))),
            with_more("checkpoint", 0.0),
        ),
        steps(with_more("rest", 0.06)),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section) == ()


EXTRA = {"rest": 50, "forward": 20, "backward-or-wait": 25, "optimizer": 5}
WAITING = {"backward-or-wait": 70, "forward": 20, "optimizer": 5, "rest": 5}
PICTURE = user(55, "draw(inputs, outputs)", "train")


@pytest.mark.parametrize(
    ("activity", "does"),
    [
        ("rest", "works outside the model"),
        ("evaluation", "is in evaluation"),
        ("logging", "is in logging"),
    ],
)
def test_a_live_run_that_waits_for_what_rank_0_does_beside_it(
    findings: Findings, activity: str, does: str
) -> None:
    extra = {activity if name == "rest" else name: share for name, share in EXTRA.items()}
    live = look(moving(0, extra, line=PICTURE), moving(1, WAITING, asleep=0.6))
    (finding,) = findings(CAUSE, live)
    assert does in finding.because
    assert finding.severity is Severity.WARNING
    assert finding.where.ranks == (0,)
    assert "mostly at train.py:55 in train (`draw(inputs, outputs)`)" in finding.because
    assert finding.fixes[0].summary.startswith(
        "evaluate on all ranks" if activity == "evaluation" else "move train.py:55"
    )


CALLS = user(20, "loss = model(inputs)", "train")
CHECKS = user(50, "check(model)", "train")
IN_CHECK = user(70, "right += model(inputs)", "check")
IN_MODEL = user(5, "return self.body(x)", "Net.forward")


def forward(one: LiveRank, rows: Sequence[tuple[int, tuple[Frame, ...], int]]) -> LiveRank:
    """A rank that is in the model at these lines: samples, frames, frames that lead there."""
    beside = [row for row in one.activities if row.name != "forward"]
    model = [
        Activity(name="forward", samples=samples, visits=20, calls=calls, entered=entered)
        for samples, calls, entered in rows
    ]
    return msgspec.structs.replace(one, activities=(*model, *beside))


def test_a_rank_0_that_calls_the_model_where_the_others_never_do(findings: Findings) -> None:
    own = [(50, (CHECKS, IN_CHECK, IN_MODEL), 2), (15, (CALLS, IN_MODEL), 1)]
    first = forward(moving(0, {"forward": 65, "backward-or-wait": 25, "optimizer": 10}), own)
    second = forward(moving(1, WAITING, asleep=0.6), [(20, (CALLS, IN_MODEL), 1)])
    (finding,) = findings(CAUSE, look(first, second))
    assert "mostly at train.py:50 in train (`check(model)`)" in finding.because
    assert "evaluate on all ranks" in finding.fixes[0].summary
    # It is slow within the model; or nothing shows that all train with another line.
    slow = [(50, (CALLS, user(6, "busy()", "Net.forward")), 1), (15, (CALLS, IN_MODEL), 1)]
    assert findings(CAUSE, look(forward(first, slow), second)) == ()
    assert findings(CAUSE, look(forward(first, own[:1]), second)) == ()


def test_slow_collectives_keep_rank_0_waiting_as_well(findings: Findings) -> None:
    """It waits for more than half of what the others wait, but works at a line of its own."""
    busy = {"rest": 42, "collective": 48, "forward": 10}
    other = moving(1, {"collective": 81, "forward": 10, "backward": 9}, asleep=0.8)
    (finding,) = findings(CAUSE, look(moving(0, busy, line=PICTURE, asleep=0.5), other))
    assert "mostly at train.py:55 in train (`draw(inputs, outputs)`)" in finding.because
    # All ranks run that line, or it takes too little to explain their waits.
    assert findings(CAUSE, look(moving(0, busy, asleep=0.5), other)) == ()
    little = {"rest": 20, "collective": 48, "forward": 32}
    assert findings(CAUSE, look(moving(0, little, line=PICTURE, asleep=0.5), other)) == ()


LOOP = user(90, "main()", "<module>")


def looped(one: LiveRank, asleep: float, *own: Activity) -> LiveRank:
    """The rank, in a loop that all ranks call, with these activities besides."""
    usual = (
        msgspec.structs.replace(row, calls=(LOOP, *row.calls), times=(1, 20))
        for row in one.activities
    )
    samples = one.samples + sum(row.samples for row in own)
    return msgspec.structs.replace(one, samples=samples, asleep=asleep, activities=(*usual, *own))


def draws(samples: int, times: int, line: int = 55) -> Activity:
    """So many samples on the way to a picture, in so many turns."""
    calls = (
        LOOP,
        user(line, PICTURE.text, "train"),
        user(line + 15, "figure.savefig(path)", "draw"),
    )
    return Activity(name="rest", samples=samples, visits=20, calls=calls, times=(1, times, 20))


SOMETIMES = {"forward": 40, "backward-or-wait": 42, "rest": 10}
OFTEN_WAITS = {"forward": 38, "backward-or-wait": 52, "rest": 10}


def test_a_live_rank_0_that_does_it_now_and_then(findings: Findings) -> None:
    """Eight in a hundred samples, at no line of the others, which wait for as long."""
    first, other = moving(0, SOMETIMES), moving(1, OFTEN_WAITS)
    live = look(looped(first, 0.3, draws(8, 4)), looped(other, 0.4))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.NOTE
    assert "mostly at train.py:55 in train (`draw(inputs, outputs)`)" in finding.because
    assert findings("straggler-rank", live) == ()


def test_a_live_rank_0_that_is_slow_in_the_model_is_a_straggler(findings: Findings) -> None:
    """Its own line lies within the pass that all ranks begin at the same line."""
    first, other = moving(0, SOMETIMES), moving(1, OFTEN_WAITS)
    own = Activity(
        name="forward",
        samples=10,
        visits=20,
        calls=(LOOP, LINE, user(12, "slow(x)", "forward")),
        times=(1, 20, 10),
        entered=2,
    )
    both = [looped(first, 0.3, own), looped(other, 0.4)]
    both = [
        msgspec.structs.replace(
            one,
            activities=tuple(msgspec.structs.replace(row, entered=2) for row in one.activities),
        )
        for one in both
    ]
    assert findings(CAUSE, look(*both)) == ()
    (finding,) = findings("straggler-rank", look(*both))
    assert "`slow(x)`" in finding.because


@pytest.mark.parametrize(
    "live",
    [
        # It came there too seldom; it takes too little; the others do not wait; all come there.
        look(looped(moving(0, SOMETIMES), 0.3, draws(8, 2)), looped(moving(1, OFTEN_WAITS), 0.4)),
        look(looped(moving(0, SOMETIMES), 0.3, draws(4, 4)), looped(moving(1, OFTEN_WAITS), 0.4)),
        look(looped(moving(0, SOMETIMES), 0.3, draws(8, 4)), looped(moving(1, OFTEN_WAITS), 0.3)),
        look(
            looped(moving(0, SOMETIMES), 0.3, draws(8, 4)),
            looped(moving(1, OFTEN_WAITS), 0.4, draws(1, 1)),
        ),
        # Each rank does something of its own, as the stages of a pipeline do.
        look(
            looped(moving(0, SOMETIMES), 0.3, draws(8, 4)),
            looped(moving(1, OFTEN_WAITS), 0.4, draws(6, 4, line=81)),
        ),
    ],
)
def test_quiet_about_what_is_rare_or_small(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


NEARLY_ALL = {"rest": 97, "forward": 3}


def waiting(longest: float) -> LiveRank:
    """A rank that waits, the longest time for so many seconds."""
    return msgspec.structs.replace(moving(1, WAITING, asleep=0.6), longest_sleep=longest)


def test_a_rank_0_that_is_hardly_ever_elsewhere(findings: Findings) -> None:
    at_it = moving(0, NEARLY_ALL, line=PICTURE, visits=2)
    (finding,) = findings(CAUSE, look(at_it, waiting(0.5)))
    assert finding.severity is Severity.WARNING
    # The others wait once for long.
    assert findings(CAUSE, look(at_it, waiting(6.0))) == ()


@pytest.mark.parametrize(
    "live",
    [
        look(moving(0), moving(1)),
        look(moving(0, EXTRA), moving(1, EXTRA)),
        # Another rank; in the model; once.
        look(moving(0, WAITING, asleep=0.6), moving(1, EXTRA)),
        look(moving(0, {**TRAINING, "forward": 80}), moving(1, WAITING, asleep=0.6)),
        look(moving(0, EXTRA, visits=1), moving(1, WAITING, asleep=0.6)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
