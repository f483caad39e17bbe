"""How fast a training steps, by the lines in which it prints that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from ddoctor import engine
from ddoctor.evidence.printed_pace import PrintedPace
from ddoctor.models import Report
from ddoctor.reading import reader
from ddoctor.report.facts import facts

Line = Callable[[int, float], str]


def megatron(step: int, seconds: float, size: int = 512) -> str:
    return (
        f" [2026-11-27 03:11:09] iteration {step:8d}/   50000 | consumed samples: {512 * step:12d} "
        f"| elapsed time per iteration (ms): {1000 * seconds:.1f} | learning rate: 1.500000E-04 | "
        f"global batch size: {size:5d} | lm loss: {2 + 1 / (step + 1):.6E} | grad norm: 0.311 |"
    )


FORMS: dict[str, tuple[Line, str, Callable[[float], float]]] = {
    "Megatron": (megatron, "elapsed time per iteration (ms)", lambda s: 1000 * s),
    "nanoGPT": (
        lambda n, s: f"iter {n}: loss 2.{n % 97:02d}11, time {1000 * s:.2f}ms, mfu 31.20%",
        "time",
        lambda s: 1000 * s,
    ),
    "build-nanogpt": (
        lambda n, s: f"step {n:5d} | loss: 3.1 | norm: 0.3 | dt: {1000 * s:.2f}ms | tok/sec: 9.0",
        "tok/sec",
        lambda _: 9.0,
    ),
    "torchtitan": (
        lambda n, s: f"[rank0]:step: {n}  loss: 7.1  memory: 60.1GiB(76%)  tps: {8192 / s:,.0f}  x",
        "tps",
        lambda s: 8192 / s,
    ),
    "timm": (
        lambda n, s: (
            f"Train: 3 [{n:4d}/9999 (  1%)]  Loss: 6.9 (6.9)  Time: {s:.3f}s, "
            f"{256 / s:7.2f}/s  LR: 1.0e-05"
        ),
        "Time",
        lambda s: s,
    ),
    "mmengine": (
        lambda n, s: (
            f"Epoch(train) [1][{n}/9999]  lr: 1e-02  eta: 1:00:00  time: {s:.4f}  "
            "data_time: 0.0102  memory: 4211  loss: 1.2"
        ),
        "time",
        lambda s: s,
    ),
    "DeepSpeed": (
        lambda n, s: (
            f"[Rank 0] step={n}, skipped=0, lr=[1e-05], RunningAvgSamplesPerSec=1.0, "
            f"CurrSamplesPerSec={64 / s:.4f}"
        ),
        "CurrSamplesPerSec",
        lambda s: 64 / s,
    ),
    "torchtune": (
        lambda n, s: f"Step {n} | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:{4096 / s:.3f}",
        "tokens_per_second_per_gpu",
        lambda s: 4096 / s,
    ),
    "word language model": (
        lambda n, s: f"| epoch 1 | {n:5d}/ 9999 batches | lr 20.00 | ms/batch {1000 * s:5.2f} | x",
        "ms/batch",
        lambda s: 1000 * s,
    ),
    "NeMo": (
        lambda n, s: f"Epoch 0: step {n}, reduced_train_loss=1.2, train_step_timing in s={s:.2f}",
        "train_step_timing in s",
        lambda s: s,
    ),
    "tqdm": (
        lambda n, s: str(tqdm.format_meter(n, 9999, n * s, rate=1 / s, prefix="train")),
        "s/it",
        lambda s: s,
    ),
    "Lightning": (
        lambda n, s: f"Epoch 2:  10%|#         | {n}/9999 [00:01<01:00, {1 / s:.2f}it/s, v_num=3]",
        "it/s",
        lambda s: 1 / s,
    ),
}


def paces(steps: int = 200, slow: float = 2.3, since: int = 120) -> list[float]:
    """Seconds of each step: 1.8, later ``slow`` times as long, and 3 % of noise."""
    drawn = random.Random(7)
    return [
        1.8 * (slow if step >= since else 1.0) * drawn.uniform(0.97, 1.03) for step in range(steps)
    ]


def log(line: Line, seconds: Iterable[float]) -> str:
    return "".join(f"{line(step, one)}\n" for step, one in enumerate(seconds))


def told(folder: Path, text: str) -> tuple[Report, tuple[PrintedPace, ...], str]:
    (folder / "train.log").write_text(text)
    evidence, refused = reader.read([folder / "train.log"])
    assert refused == ()
    rows = [one.text for one in facts(evidence) if one.label == "pace"]
    return engine.examine(evidence, "diagnose"), evidence.all(PrintedPace), "".join(rows)


@pytest.mark.parametrize("name", FORMS)
def test_each_form(tmp_path: Path, name: str) -> None:
    line, figure, printed = FORMS[name]
    _, (pace,), row = told(tmp_path, log(line, paces(slow=1.0)))
    series = max(pace.series, key=lambda one: len(one.values))
    assert (series.figure, series.lines[:2], len(series.values)) == (figure, (1, 2), 200)
    assert series.values[150] == pytest.approx(printed(paces(slow=1.0)[150]), rel=0.01)
    assert series.steps[150] == 150 or name in ("timm", "mmengine", "word language model")
    assert "in the median of 200 lines" in row


@pytest.mark.parametrize("name", [name for name in FORMS if name != "build-nanogpt"])
def test_a_run_that_becomes_slower_is_not_plainly_healthy(tmp_path: Path, name: str) -> None:
    report, _, row = told(tmp_path, log(FORMS[name][0], paces()))
    (why,) = report.unexplained
    assert "train.log:121" in why
    assert "2.3 times as long" in why
    assert "train.log:121" in row


def test_bars_that_overwrite_one_another(tmp_path: Path) -> None:
    bars = log(FORMS["tqdm"][0], paces()).replace("\n", "\r")
    report, _, _ = told(tmp_path, f"begin\n{bars}\nend\n")
    (why,) = report.unexplained
    assert why.startswith("from step 120 (train.log:2) on, a step takes 2.3 times as long")


def test_each_rank_by_itself(tmp_path: Path) -> None:
    rows = []
    for step, one in enumerate(paces()):
        rows += [f"[rank0]: step {step} step_time: 1.8", f"[rank1]: step {step} step_time: {one}"]
    report, _, _ = told(tmp_path, "\n".join(rows) + "\n")
    (why,) = report.unexplained
    assert "a step of rank 1 takes 2.3 times as long" in why


def evaluating() -> str:
    """Bars of a training, and of an evaluation that is slower."""
    rows = []
    for step in range(400):
        rows.append(f" 10%|#  | {step}/9999 [00:01<01:00,  1.80s/it]")
        if step > 300:
            rows.append(f" 10%|#  | {step - 300}/120 [00:01<01:00,  4.80s/it]")
    return "\n".join(rows)


def recovering() -> list[float]:
    return [*paces(since=100), *paces(slow=1.0)]


QUIET = {
    "the same pace": log(megatron, paces(slow=1.0)),
    "faster": log(megatron, paces(slow=0.5)),
    "a little slower": log(megatron, paces(slow=1.15)),
    "slower for a while": log(megatron, recovering()),
    "few lines": log(megatron, paces(50, since=25)),
    "slow lines at the end": log(megatron, paces(since=180)),
    "each tenth is an evaluation": log(
        megatron, [9.0 if n % 10 == 0 else one for n, one in enumerate(paces(slow=1.0))]
    ),
    "a larger batch": "".join(
        f"{megatron(n, one, size=512 if n < 120 else 1024)}\n" for n, one in enumerate(paces())
    ),
    "sums of time": log(lambda n, s: f"step {n} step_time: {1.8 * n + s:.2f}", paces(slow=1.0)),
    "bars of an evaluation": evaluating(),
    "noise": log(megatron, [random.Random(n).lognormvariate(0, 0.6) for n in range(300)]),
}


@pytest.mark.parametrize("name", QUIET)
def test_quiet(tmp_path: Path, name: str) -> None:
    report, _, _ = told(tmp_path, QUIET[name])
    assert (report.findings, report.unexplained) == ((), ())


def test_other_lines_have_no_pace(tmp_path: Path) -> None:
    text = "".join(
        f"[2026-11-27 03:00:{n % 60:02d}] INFO loaded shard {n} from /s3/data/{n}.tar in time\n"
        for n in range(300)
    )
    assert told(tmp_path, text)[1:] == ((), "")


def test_a_long_log_is_sampled(tmp_path: Path) -> None:
    report, (pace,), _ = told(tmp_path, log(megatron, paces(40_000, since=30_000)))
    (series,) = pace.series
    assert len(series.values) < 2048
    (why,) = report.unexplained
    step = int(why.split()[2])
    assert 30_000 <= step < 30_300
