from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from ddoctor.evidence.live import Activity, LiveLook, LiveRank
from ddoctor.evidence.steps import COLLECT, Lines, Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Severity
from tests.analysis.test_live_loop import STEP, at, rank
from tests.conftest import Findings
from tests.live_look import TRAINING, look, moving
from tests.training_run import user
from tests.training_steps import USUAL, Work, every, lines, origin, steps, with_more

CAUSE = "step-loop-overhead"
FORWARD = ("forward", 20, "loss = model(batch)")
LOGS = ("rest", 31, "logger.info('loss %f', loss)")
DATA = ("rest", 32, "rollout = environment.play(model)")


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("logger.info('loss %f', loss.detach())", "logs"),
        ("writer.add_histogram('weights', weights)", "logs"),
        ("wandb.log({'loss': loss})", "logs"),
        ("losses.append(loss.item())", "reads values back"),
        ("torch.cuda.empty_cache()", "empties the allocator's cache"),
        ("averages = copy.deepcopy(model)", "copies"),
    ],
)
def test_what_the_loop_does_beside(findings: Findings, text: str, does: str) -> None:
    met = {FORWARD: 30, ("rest", 31, text): 12}
    section = steps(*[with_more("rest", 0.03)] * 2, noise=0.05)
    (finding,) = findings(CAUSE, section, lines(met, met))
    assert finding.severity is Severity.WARNING
    assert f"train.py:31 in main (`{text}`) ({does})" in finding.because
    assert finding.fixes[0].paste.endswith(text)
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.03 / 0.135, abs=0.03)


@pytest.mark.parametrize(("seconds", "severity"), [(0.05, Severity.WARNING), (0.02, Severity.NOTE)])
def test_a_callback_counts_by_its_cost(
    findings: Findings, seconds: float, severity: Severity
) -> None:
    met = {FORWARD: 30, ("rest", 22, "ordered = gradient.sort()"): 12}
    found = lines(met, met)
    ranks = tuple(
        replace(
            one,
            lines=tuple(
                replace(line, function="Spread.on_after_backward", calls=(), after="backward")
                if line.phase == "rest"
                else line
                for line in one.lines
            ),
        )
        for one in found.ranks
    )
    section = steps(*[with_more("rest", seconds)] * 2)
    (finding,) = findings(CAUSE, section, replace(found, ranks=ranks))
    assert finding.severity is severity
    assert "in a callback" in finding.because
    assert "if not each step needs this" in finding.fixes[0].summary


def models(met: Mapping[tuple[str, int, str], int]) -> Lines:
    """Lines of two ranks, those of the rest in layers of a model."""
    found = lines(met, met)
    ranks = tuple(
        replace(
            one,
            lines=tuple(
                replace(line, inner="modules/linear.py:forward") if line.phase == "rest" else line
                for line in one.lines
            ),
        )
        for one in found.ranks
    )
    return replace(found, ranks=ranks)


VALUES = ("rest", 31, "values = critic(states)")


def test_a_model_that_computes_beside_the_passes_is_a_note(findings: Findings) -> None:
    section = steps(*[with_more("rest", 0.05)] * 2)
    (finding,) = findings(CAUSE, section, models({FORWARD: 30, VALUES: 12}))
    assert finding.severity is Severity.NOTE
    assert "train.py:31" in finding.because
    assert "several steps could share" in finding.because


def test_quiet_about_a_teacher_that_takes_less(findings: Findings) -> None:
    section = steps(*[with_more("rest", 0.02)] * 2)
    assert findings(CAUSE, section, models({FORWARD: 30, VALUES: 12})) == ()


def hooked(met: Mapping[tuple[str, int, str], int]) -> Lines:
    """Lines of two ranks, those of the rest in hooks."""
    found = lines(met, met)
    return replace(
        found,
        ranks=tuple(
            replace(
                one, lines=tuple(replace(line, hook=line.phase == "rest") for line in one.lines)
            )
            for one in found.ranks
        ),
    )


HOOK = ("rest", 31, "seen[name] = Counter(grad.flatten().tolist())")


def test_a_hook_of_a_gradient(findings: Findings) -> None:
    section = steps(*[with_more("rest", 0.04)] * 2, noise=0.05)
    (finding,) = findings(CAUSE, section, hooked({FORWARD: 30, HOOK: 12}))
    assert finding.severity is Severity.WARNING
    assert "train.py:31" in finding.because
    assert "(in a hook of the model)" in finding.because
    assert finding.fixes[0].summary.startswith("if not each step needs this")
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.04 / 0.145, abs=0.03)


def test_a_hook_of_a_module_takes_its_samples_of_the_pass(findings: Findings) -> None:
    met = {FORWARD: 30, ("backward", 21, "loss.backward()"): 30, ("forward", 31, HOOK[2]): 20}
    found = lines(met, met)
    ranks = tuple(
        replace(one, lines=tuple(replace(line, hook=line.text == HOOK[2]) for line in one.lines))
        for one in found.ranks
    )
    (finding,) = findings(CAUSE, steps(USUAL, USUAL), replace(found, ranks=ranks))
    assert finding.title == "Hooks of the model take a notable part of the step"
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(20 / 80, abs=0.01)
    assert findings(CAUSE, steps(USUAL, USUAL), found) == ()


def test_what_each_step_may_need_is_a_note_while_it_costs_less(findings: Findings) -> None:
    section = steps(*[with_more("rest", 0.015)] * 2, noise=0.05)
    (finding,) = findings(CAUSE, section, hooked({FORWARD: 30, HOOK: 12}))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize("more", [0.0, 0.004])
def test_quiet_about_a_cheap_hook(findings: Findings, more: float) -> None:
    section = steps(*[with_more("rest", more)] * 2, noise=0.05)
    assert findings(CAUSE, section, hooked({FORWARD: 30, HOOK: 2})) == ()


def test_quiet_about_a_hook_of_one_rank(findings: Findings) -> None:
    one = hooked({FORWARD: 30, HOOK: 12}).ranks[0]
    other = lines({FORWARD: 30}, {FORWARD: 30}).ranks[1]
    section = steps(with_more("rest", 0.04), USUAL, noise=0.05)
    assert findings(CAUSE, section, Lines(ranks=(one, other))) == ()


@pytest.mark.parametrize(
    "text",
    [
        "loss.backward(); optimizer.step(); print(loss)",
        "for batch in tqdm(loader): print(batch)",
        "trainer.fit(model, loader)",
        "if step % 10 == 0: print(loss.item())",
        "logger.info('loss %f',",
    ],
)
def test_the_training_is_not_to_be_done_seldom(findings: Findings, text: str) -> None:
    met = {FORWARD: 30, ("rest", 31, text): 12}
    (finding,) = findings(CAUSE, steps(*[with_more("rest", 0.03)] * 2), lines(met, met))
    assert text not in finding.fixes[0].paste
    assert "train.py:31" in finding.fixes[0].paste


def test_collecting_garbage_in_each_step(findings: Findings) -> None:
    met = {FORWARD: 30, ("gc", 40, "gc.collect()"): 12}
    (finding,) = findings(CAUSE, steps(*[with_more("gc", 0.03)] * 2), lines(met, met))
    assert "gc.collect()" in finding.because
    assert "leave collection to Python" in finding.fixes[0].summary


def test_a_function_of_a_library_that_collects_garbage(findings: Findings) -> None:
    met = lines(*[{FORWARD: 30, ("gc", 40, "loss = release_memory(loss)"): 12}] * 2)
    asked = replace(
        met,
        ranks=tuple(
            replace(
                one,
                lines=tuple(
                    replace(row, inner=COLLECT) if row.phase == "gc" else row for row in one.lines
                ),
            )
            for one in met.ranks
        ),
    )
    work = steps(*[with_more("gc", 0.03)] * 2)
    (finding,) = findings(CAUSE, work, asked)
    assert "release_memory(loss)" in finding.because
    assert "leave collection to Python" in finding.fixes[0].summary
    assert findings("gc-pause-straggler", work, asked) == ()


def test_a_single_rank(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(with_more("rest", 0.03)), lines({LOGS: 9}))
    assert "train.py:31" in finding.because


def test_what_may_have_to_be_is_a_note(findings: Findings) -> None:
    met = {FORWARD: 30, DATA: 20, LOGS: 1}
    (finding,) = findings(CAUSE, steps(*[with_more("rest", 0.03)] * 2), lines(met, met))
    assert finding.severity is Severity.NOTE
    assert finding.confidence is Confidence.POSSIBLE
    assert "train.py:32" in finding.because


def test_a_loop_over_gradients_is_not_to_be_done_seldom(findings: Findings) -> None:
    met = {FORWARD: 30, ("rest", 32, "for row in p.grad: row.clamp_(-1, 1)"): 20}
    (finding,) = findings(CAUSE, steps(*[with_more("rest", 0.03)] * 2), lines(met, met))
    assert finding.severity is Severity.NOTE
    assert "clip_grad_value_" in finding.fixes[0].paste


def with_ends(section: Steps, idle_forwards: int, idle_backwards: int) -> Steps:
    """The same with one pass of each kind in a step, and this many in ten that end idle."""
    ones = (1,) * section.count

    def idle(tenths: int) -> tuple[int, ...]:
        return tuple(int(step % 10 < tenths) for step in range(section.count))

    ends = {"idle_forwards": idle(idle_forwards), "idle_backwards": idle(idle_backwards)}
    ranks = (replace(one, forwards=ones, backwards=ones, **ends) for one in section.ranks)
    return replace(section, ranks=tuple(ranks))


def test_kernels_that_are_launched_too_late(findings: Findings) -> None:
    section = with_ends(steps(USUAL, device="cuda"), 10, 9)
    (finding,) = findings(CAUSE, section, lines({FORWARD: 30}))
    assert finding.severity is Severity.WARNING
    assert "at their ends the GPU has nothing left to do" in finding.because
    assert "launches it, mostly at train.py:" in finding.because
    assert "torch.compile" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("idle_forwards", "idle_backwards", "work"),
    [
        (0, 0, USUAL),
        # The backward pass launches faster than the forward pass, and fills the queue.
        (10, 0, USUAL),
        (0, 10, USUAL),
        (5, 10, USUAL),
        # Something else takes the step.
        (10, 10, with_more("loader", 2.0)),
    ],
)
def test_quiet_where_kernels_wait_for_the_gpu(
    findings: Findings, idle_forwards: int, idle_backwards: int, work: Work
) -> None:
    section = with_ends(steps(work, device="cuda"), idle_forwards, idle_backwards)
    assert findings(CAUSE, section) == ()


def test_late_launches_in_a_part_of_the_step_are_a_note(findings: Findings) -> None:
    section = with_ends(steps(with_more("loader", 0.12), device="cuda"), 10, 10)
    notes = [one for one in findings(CAUSE, section) if "launches" in one.because]
    assert [one.severity for one in notes] == [Severity.NOTE]


def test_quiet_on_a_cpu_and_where_one_gpu_is_behind(findings: Findings) -> None:
    assert findings(CAUSE, steps(USUAL)) == ()
    keeps_up, behind = (
        with_ends(steps(USUAL, USUAL, device="cuda"), tenths, tenths).ranks for tenths in (10, 0)
    )
    section = replace(steps(USUAL, USUAL, device="cuda"), ranks=(keeps_up[0], behind[1]))
    assert findings(CAUSE, section) == ()


ADJUSTS = ("rest", 12, "adjust(schedule)")


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0.05, Severity.WARNING), (0.016, Severity.NOTE)]
)
def test_other_work_before_the_model_weighs_by_its_cost(
    findings: Findings, seconds: float, severity: Severity
) -> None:
    met = {FORWARD: 30, ADJUSTS: 20}
    (finding,) = findings(CAUSE, steps(*[with_more("rest", seconds)] * 2), lines(met, met))
    assert finding.severity is severity
    assert finding.confidence is Confidence.LIKELY
    assert "train.py:12 in main (`adjust(schedule)`)" in finding.because
    assert finding.fixes[0].summary.startswith("if not each step needs this")


def test_quiet_where_a_batch_is_prepared(findings: Findings) -> None:
    """It is told with another fix."""
    met = {FORWARD: 30, ("rest", 12, "batch = tokenise(texts)"): 20}
    seen = lines(met, met, origins=(origin(10, gives=True), origin(12)))
    assert findings(CAUSE, steps(*[with_more("rest", 0.05)] * 2), seen) == ()


def test_ranks_that_differ_by_chance_alone(findings: Findings) -> None:
    """Each of two ranks has a sixth of its samples at the line, by the mean of both."""
    line, other = ("rest", 30, "shown = meter.median()"), ("rest", 22, "optimizer.zero_grad()")
    section = steps(*[with_more("rest", 0.03)] * 2)
    met = lines({FORWARD: 70, line: 6, other: 8}, {FORWARD: 72, line: 12, other: 2})
    costs = [
        next(one.cost for one in findings(CAUSE, section, seen))
        for seen in (met, lines(*[{FORWARD: 71, line: 9, other: 5}] * 2))
    ]
    few, same = (cost.value if cost is not None else 0.0 for cost in costs)
    assert few > 0.75 * same > 0.0


def test_anomaly_mode(findings: Findings) -> None:
    use = RankUse(hosts=(), flags=tuple(RankFlags(rank=rank, anomaly=True) for rank in (0, 1)))
    (finding,) = findings(CAUSE, use)
    assert "on all ranks" in finding.because
    assert finding.severity is Severity.WARNING


def test_anomaly_mode_on_one_rank(findings: Findings) -> None:
    use = RankUse(hosts=(), flags=(RankFlags(rank=0), RankFlags(rank=1, anomaly=True)))
    (finding,) = findings(CAUSE, use)
    assert finding.where.ranks == (1,)


def test_quiet_with_anomaly_mode_off(findings: Findings) -> None:
    assert findings(CAUSE, RankUse(hosts=(), flags=(RankFlags(rank=0),))) == ()


@pytest.mark.parametrize(
    "section",
    [
        steps(USUAL, USUAL, noise=0.2),
        steps(*[with_more("rest", 0.008)] * 2),
        # On one rank only, in few steps only, in the model.
        steps(with_more("rest", 0.05), USUAL),
        steps(*[with_more("rest", every(10, 0.5))] * 2),
        steps(*[with_more("forward", 0.05)] * 2),
        steps(*[with_more("rest", 0.05)] * 2, count=9),
    ],
)
def test_quiet(findings: Findings, section: Steps) -> None:
    assert findings(CAUSE, section, lines(*[{FORWARD: 30, LOGS: 12}] * 2)) == ()


def test_quiet_where_no_line_can_be_named(findings: Findings) -> None:
    section = steps(*[with_more("rest", 0.03)] * 2)
    assert findings(CAUSE, section, lines({FORWARD: 30}, {FORWARD: 30})) == ()


def test_the_garbage_of_a_line_counts_for_it(findings: Findings) -> None:
    rounds = "rows = [round(v, 3) for v in p]"
    met = {FORWARD: 30, ("rest", 50, rounds): 20, ("gc", 50, rounds): 12}
    ranks = [with_more("gc", 0.04, with_more("rest", 0.03))] * 2
    (finding,) = findings(CAUSE, steps(*ranks), lines(met, met))
    assert "all ranks spend 71 ms of a step" in finding.because
    assert rounds in finding.because


def test_quiet_where_python_itself_collects(findings: Findings) -> None:
    met = {FORWARD: 30, ("gc", 50, "samples.append(sample)"): 12}
    assert findings(CAUSE, steps(*[with_more("gc", 0.05)] * 2), lines(met, met)) == ()


LOGGING = {"rest": 40, "forward": 25, "backward-or-wait": 30, "optimizer": 5}
AFTER = (*at(35, "history = summarise(values)"), user(7, "table[value] += 1", "summarise"))


def test_a_live_run_that_works_after_the_step(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(*(rank(one, (42, AFTER)) for one in (0, 1))))
    assert finding.severity is Severity.WARNING
    assert "42% of the time in the loop around the model: train.py:35 in train" in finding.because
    assert finding.fixes[0].summary.startswith("if not each step needs this")


VALUE = user(52, "print(step, loss.item(), flush=True)", "train")


def test_a_live_run_that_reads_values_back(findings: Findings) -> None:
    live = look(*(moving(rank, LOGGING, line=VALUE) for rank in range(2)))
    (finding,) = findings(CAUSE, live)
    assert finding.severity is Severity.WARNING
    assert "train.py:52 in train (`print(step, loss.item(), flush=True)`)" in finding.because
    assert "\n    print(step, loss.item(), flush=True)" in finding.fixes[0].paste


OBSERVED = user(7, "seen[name] = Counter(grad.flatten().tolist())", "observe")


def hooking(number: int, samples: int, visits: int = 20) -> LiveRank:
    """A rank with samples in a hook that the backward pass calls."""
    met = ("hooks", samples, at(30, "loss.backward()", OBSERVED))
    return rank(number, visits=visits, step=(*STEP, met))


def test_hooks_of_a_live_run(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(hooking(0, 40), hooking(1, 36)))
    assert finding.severity is Severity.WARNING
    assert "train.py:7 in observe" in finding.because
    assert "(in a hook of the model)" in finding.because


def tracing(number: int, samples: int) -> LiveRank:
    """A rank whose operations keep their traceback in this many samples."""
    known = moving(number)
    traced = Activity(name="forward", samples=samples, visits=20, makes="format_stack")
    return replace(known, samples=known.samples + samples, activities=(*known.activities, traced))


def test_operations_of_a_live_run_that_keep_their_traceback(findings: Findings) -> None:
    (finding,) = findings(CAUSE, look(tracing(0, 40), tracing(1, 30)))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert finding.cost is not None
    assert 0.2 < finding.cost.value < 0.3
    (finding,) = findings(CAUSE, look(tracing(0, 9), tracing(1, 10)))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "live",
    [
        # A stack may change while it is read.
        look(tracing(0, 1), tracing(1, 2)),
        look(tracing(0, 4), tracing(1, 4)),
        look(tracing(0, 30), moving(1)),
        look(hooking(0, 4), hooking(1, 4)),
        look(hooking(0, 40, visits=1), hooking(1, 40, visits=1)),
        look(moving(0), moving(1)),
        look(*(moving(rank, {**TRAINING, "rest": 6}, line=VALUE) for rank in (0, 1))),
        # A line that may be the training's own; one rank only; once in the look.
        look(*(moving(rank, LOGGING, line=user(52, "loss = criterion(x)")) for rank in (0, 1))),
        look(moving(0, LOGGING, line=VALUE), moving(1)),
        look(*(moving(rank, LOGGING, line=VALUE, visits=1) for rank in (0, 1))),
        # The host waits for a GPU that has enough to do.
        look(*(moving(rank, {"gpu-wait": 80, "forward": 20}, line=VALUE) for rank in (0, 1))),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()
