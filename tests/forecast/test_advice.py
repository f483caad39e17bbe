"""A search of configurations finds what the enumeration of all of them finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Candidate, Plan
from ddoctor.forecast import advice, config_files, planning, request, timing
from ddoctor.forecast.closed_form import ForecastRow
from ddoctor.forecast.devices import find
from ddoctor.forecast.launch_files import ACCELERATE, ARGUMENTS, texts
from ddoctor.forecast.method import Method
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.search import RECOMPUTED, Search, row
from tests.forecast.played import GIB, MODEL, Played
from tests.forecast.small_models import forecast, written

H100 = find("h100-80")
Found = tuple[str, str, int, int]


def search(gib: float, given: Any = None, *, model: Any = MODEL, **options: Any) -> Search:
    made: Any = given or Played()
    return Search(
        model=model,
        device=replace(H100, memory=round(gib * GIB)),
        work=PlanRequest(**options),
        forecast=made,
    )


def enumerated(one: Search, gpus: int) -> list[Candidate]:
    """All that fits, fastest first."""
    found = []
    for which in RECOMPUTED:
        for samples in one.micro_batches(gpus):
            known = one.of(which, samples)
            turns = planning.accumulated(replace(one.work, micro_batch=samples), gpus)
            for strategy in planning.strategies(gpus):
                way = ForecastRow(strategy=strategy, gpus=gpus, accumulation=turns)
                memory = known.parts(way).total
                step = timing.step(one.timed(known), one.device, way, None)
                if step is not None and known.doubt * memory <= one.device.memory:
                    found.append(
                        Candidate(
                            strategy=strategy,
                            gpus=gpus,
                            micro_batch=samples,
                            accumulation=turns,
                            checkpointing=which,
                            memory=memory,
                            step=step,
                        )
                    )
    return sorted(found, key=lambda one: (-one.samples_per_second, one.memory))


@pytest.mark.parametrize("gpus", [1, 8, 64])
@pytest.mark.parametrize("batch", [None, 512])
def test_the_fastest_is_that_of_the_enumeration(gpus: int, batch: int | None) -> None:
    for gib in range(24, 400, 8):
        one = search(gib, global_batch=batch)
        every, found = enumerated(one, gpus), one.frontier(gpus)
        assert found[:1] == every[:1]


def test_no_candidate_beats_another_in_both() -> None:
    found = search(160, global_batch=512).frontier(64)
    assert len(found) > 4
    speeds = [one.samples_per_second for one in found]
    memory = [one.memory for one in found]
    assert speeds == sorted(speeds, reverse=True)
    assert memory == sorted(memory, reverse=True)
    assert len(set(memory)) == len(memory)
    assert [one.estimated for one in found] == [False, *[True] * (len(found) - 1)]


def test_gradients_stay_while_micro_batches_accumulate() -> None:
    growth = Played().growth(ForecastRow(strategy="fsdp", gpus=8), Played(samples=2))
    more = growth.total(4, 2) - growth.total(4, 1)
    assert more == pytest.approx((1 + growth.unused) * 4 * MODEL.parameters / 8, rel=0.001)


def test_what_is_estimated_is_near_the_forecast() -> None:
    one = search(160, global_batch=512)
    for found in one.frontier(64)[1:]:
        real = one.of(found.checkpointing, found.micro_batch).parts(row(found))
        assert found.memory == pytest.approx(real.total, rel=0.15)


@pytest.mark.ward
@pytest.mark.parametrize("gpus", [1, 8])
def test_the_same_with_real_steps(gpus: int, tmp_path: Path) -> None:
    source = written(tmp_path, num_hidden_layers=1)
    given = replace(forecast(source, "bf16-mixed"), samples=1)
    model = replace(given.blueprint.read("bf16-mixed", "adamw"), work=given.work)
    whole = search(80, given, model=model, global_batch=4 * gpus)
    sizes = sorted(1.001 * given.doubt * one.memory / GIB for one in enumerated(whole, gpus))
    for gib in (sizes[1], sizes[len(sizes) // 2], sizes[-2]):
        one = search(gib, given, model=model, global_batch=4 * gpus)
        one._forecasts.update(whole._forecasts)
        assert one.frontier(gpus)[0] == enumerated(one, gpus)[0]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"global_batch": 96}, (1, 2, 3, 4, 6, 12)),
        ({"global_batch": 96, "micro_batch": 3}, (3,)),
        ({"global_batch": 96, "micro_batch": 5}, ()),
        ({"global_batch": 100}, ()),
        ({"micro_batch": 3}, (3,)),
    ],
)
def test_which_micro_batches_make_up_the_global_batch(
    options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    assert search(80, **options).micro_batches(8) == sizes


def test_without_a_global_batch_they_are_powers_of_two() -> None:
    assert search(80).micro_batches(8)[:4] == (1, 2, 4, 8)
    assert {one.accumulation for one in search(80).frontier(8)} == {1}


def test_few_steps_run() -> None:
    """Of what surely does not fit, none does."""
    one = search(30, global_batch=512)
    one.frontier(64)
    largest = {which: max(n for kind, n in one._forecasts if kind == which) for which in RECOMPUTED}
    assert largest == {"every": 8, "selective:op": 4, "none": 2}


def planned(gib: float = 80, gpus: tuple[int, ...] = (64,), **options: Any) -> Plan:
    one = search(gib, **options)
    given: Any = Played()
    return advice.plan(MODEL, one.device, gpus, one.work, given)


def test_the_plan_recommends_the_fastest() -> None:
    found = planned(global_batch=512, samples=51_200)
    best = found.candidates[0]
    assert found.advised == best
    assert found.recommended is not None
    assert (found.recommended.strategy, found.recommended.gpus) == (best.strategy, 64)
    assert found.recommended.parts.total == best.memory
    assert found.recommended.fit == "fits"
    assert (found.micro_batch, found.checkpointing) == (best.micro_batch, best.checkpointing)
    assert found.schedule is not None
    assert found.schedule.global_batch == best.global_batch == 512
    assert found.reason.startswith("the fastest that fits; ")


def test_of_several_numbers_each_has_its_best() -> None:
    found = planned(gpus=(8, 64, 16), global_batch=512)
    assert sorted({one.gpus for one in found.candidates}) == [8, 16, 64]
    assert found.advised is not None
    assert found.advised.gpus == 64


def test_where_nothing_fits_the_smallest_is_planned() -> None:
    found = planned(gib=4, gpus=(8,), global_batch=64)
    assert found.candidates == ()
    assert found.recommended is None
    assert (found.micro_batch, found.checkpointing) == (1, "every")


def test_a_fixed_option_is_not_searched() -> None:
    found = planned(global_batch=512, micro_batch=2, checkpointing="every")
    assert {(one.micro_batch, one.checkpointing) for one in found.candidates} == {(2, "every")}


def test_the_files_of_the_fastest() -> None:
    found = planned(gib=120, global_batch=512, checkpointing="selective:op")
    written = texts(found)
    assert f"{found.micro_batch} samples per GPU" in written[ACCELERATE]
    assert "# The script must checkpoint by itself: selective:op" in written[ACCELERATE]
    assert "gradient_checkpointing" not in written[ARGUMENTS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": "8B", "gpu": "h100-80"}, "--advise goes with --model or --workload"),
        ({"model": "x", "gpu": "h100-80", "step": 1.0}, "--advise goes without --measured"),
        ({"model": "x", "device_memory": "24GiB"}, "--advise needs --gpu"),
        ({"model": "x", "gpu": "h100-80", "tp": 2}, "--advise does not search --tp"),
        ({"model": "x", "gpu": "h100-80", "engine": "deepspeed"}, "pass --engine fsdp"),
        ({"model": "x", "gpu": "h100-80", "lengths": Path("l")}, "pass --sequence, not --lengths"),
        ({"model": "x", "gpu": "h100-80", "method": Method("grpo")}, "pass --vllm-share"),
    ],
)
def test_what_excludes_a_search(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DoctorError, match=message):
        request.plan(PlanRequest(advise=True, **options))


def test_a_global_batch_that_no_number_of_gpus_divides() -> None:
    with pytest.raises(DoctorError, match="100 is not a multiple of 8 or 64 GPUs: change"):
        planned(gpus=(8, 64), global_batch=100)


def test_a_network_that_no_table_has() -> None:
    one = find("rtx-4090")
    given: Any = Played()
    with pytest.raises(DoctorError, match=r"no table has the network of .* for 16 GPUs"):
        advice.plan(MODEL, replace(one, memory=80 * GIB), (16,), PlanRequest(), given)


def test_a_file_of_the_training_leaves_the_search_open(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(
        "model_name_or_path: x\nper_device_train_batch_size: 2\n"
        "gradient_accumulation_steps: 4\ngradient_checkpointing: true\n"
    )
    own = PlanRequest(configs=[file], gpus="8", gpu="h100-80", advise=True)
    whole, taken = config_files.completed(own)
    opened, left = advice.opened(own, whole, taken)
    assert (whole.micro_batch, whole.checkpointing) == (2, "every")
    assert (opened.micro_batch, opened.checkpointing, opened.global_batch) == (None, None, 64)
    assert {one.name for one in left.settings} == {"--model", "--global-batch"}
