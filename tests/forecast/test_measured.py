"""What a bundle's step tells of the rows of a plan."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ddoctor.analysis.scaling import CONTENTION
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.evidence.cluster_probes import Collectives, Scope, Sweep
from ddoctor.evidence.plan import Plan, PlanRow, StepTime, Strategy
from ddoctor.evidence.probes import RankPlace, SweepPoint
from ddoctor.evidence.section import Evidence, Section
from ddoctor.evidence.steps import BETWEEN_RANKS, RankSteps, Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.forecast.closed_form import CONTEXT, ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu, find
from ddoctor.forecast.from_run import RunBundle
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import plan
from tests.healthy import healthy
from tests.memory_sweep.sample import swept
from tests.training_steps import USUAL, steps
from tests.training_steps import Work as RankWork

ANY = PlannedGpu(name="a GPU", memory=80 * 10**9)
PARAMETERS = 50e6
SCOPES: tuple[Scope, Scope] = ("all", "across")
TRANSFER = 0.005
# As USUAL has it.
LOADING, OPTIMIZER, OWN = 0.001, 0.008, 0.091


def model(parameters: float = PARAMETERS) -> Model:
    return Model(
        parameters=parameters,
        trainable=parameters,
        precision="bf16-mixed",
        optimizer="adamw",
        activations=10**9,
    )


def recorded(
    ranks: int = 2, work: RankWork = USUAL, *, turns: int = 1, ranks_per_host: int = 8
) -> Steps:
    """With 8 samples in each micro-batch."""
    found = steps(*(work,) * ranks, transfer=TRANSFER, ranks_per_host=ranks_per_host)
    several = (turns,) * found.count
    return msgspec.structs.replace(
        found,
        ranks=tuple(
            msgspec.structs.replace(
                rank, samples=(8 * turns,) * found.count, forwards=several, backwards=several
            )
            for rank in found.ranks
        ),
    )


def wrapped(kind: str = "ddp", *, ranks: int = 2, sharding: str = "") -> Wrapping:
    return Wrapping(
        wrappers=tuple(
            Wrapper(
                rank=rank,
                kind=kind,  # type: ignore[arg-type]
                name="Net",
                parameters=round(PARAMETERS),
                parameter_bytes=0,
                trainable_bytes=0,
                sharding=sharding,  # type: ignore[arg-type]
            )
            for rank in range(ranks)
        )
    )


def collectives(scope: Scope, bandwidth: float, *, hosts: int = 1) -> Collectives:
    """GB/s at 1 GiB, and less at a small size."""
    places = tuple(
        RankPlace(rank=rank, host=f"node-{rank * hosts // 4}", device=f"cuda:{rank}")
        for rank in range(4)
    )
    points = tuple(
        SweepPoint(bytes=size, rounds=5, p50=1, p99=1, minimum=1, bus_bandwidth=found)
        for size, found in ((2**20, bandwidth / 9), (2**30, bandwidth))
    )
    sweep = Sweep(collective="all-reduce", scope=scope, ranks=(0, 1, 2, 3), points=points)
    return Collectives(backend="nccl", ranks=places, sweeps=(sweep,))


def planned(
    folder: Path, gpus: tuple[int, ...], *sections: Section, micro_batch: int | None = 8
) -> Plan:
    path = folder / "bundle.json"
    bundle.write(path, Evidence(sections))
    measured = RunBundle([path]).step(ANY, micro_batch)
    measured.check(model())
    work = PlanRequest(micro_batch=measured.micro_batch, samples=8000)
    return plan(model(), ANY, gpus, work, measured)


def the(found: Plan, strategy: Strategy, gpus: int) -> PlanRow:
    return next(row for row in found.rows if (row.strategy, row.gpus) == (strategy, gpus))


def timed(found: Plan, strategy: Strategy, gpus: int) -> StepTime:
    step = the(found, strategy, gpus).step
    assert step is not None
    return step


def test_such_a_row_takes_the_step_as_it_was(tmp_path: Path) -> None:
    found = planned(tmp_path, (2,), recorded(), wrapped())
    step = timed(found, "ddp", 2)
    assert step.source == "as measured"
    assert step.seconds == pytest.approx(LOADING + OPTIMIZER + OWN + TRANSFER)
    assert step.loading == pytest.approx(LOADING)
    assert step.efficiency == pytest.approx((OPTIMIZER + OWN) / step.seconds)
    assert found.samples_per_second(the(found, "ddp", 2)) == pytest.approx(16 / step.seconds)
    assert found.schedule is not None
    assert found.schedule.seconds == pytest.approx(500 * step.seconds)
    assert found.schedule.source == "as measured"


def test_more_ranks_of_a_host_transfer_more(tmp_path: Path) -> None:
    found = planned(tmp_path, (1, 4, 8), recorded(), wrapped())
    alone, four, eight = (timed(found, *row) for row in (("one-gpu", 1), ("ddp", 4), ("ddp", 8)))
    assert {one.source for one in (alone, four, eight)} == {"by the measured step"}
    assert alone.seconds == pytest.approx(LOADING + OPTIMIZER + OWN)
    # Of what is summed, 3/4 and 7/8 go through each, where 1/2 did.
    assert four.exposed == pytest.approx(TRANSFER * 3 / 2)
    assert eight.exposed == pytest.approx(TRANSFER * 7 / 4)
    assert four.compute == eight.compute == alone.compute


def test_what_no_link_tells_stays_open(tmp_path: Path) -> None:
    found = planned(tmp_path, (4, 16), recorded(), wrapped())
    assert the(found, "fsdp", 4).step is None
    assert the(found, "ddp", 16).step is None
    assert "not known between hosts and within a host" in found.links


def test_the_links_are_those_that_were_measured(tmp_path: Path) -> None:
    slow = planned(tmp_path, (4,), recorded(), wrapped(), collectives("within", 1.0))
    fast = planned(tmp_path, (4,), recorded(), wrapped(), collectives("within", 100.0))
    exposed = timed(slow, "fsdp", 4).exposed
    # Of 100 MB in halves 3/4 are gathered in the forward pass, and gathered again and scattered in
    # the backward pass, twice as long.
    each = 0.75 * 2 * PARAMETERS / (1e9 / CONTENTION)
    assert exposed == pytest.approx(each - OWN / 3 + 2 * each - OWN * 2 / 3)
    assert timed(fast, "fsdp", 4).exposed == 0
    assert slow.links == ""
    assert the(slow, "ddp", 4).step == the(fast, "ddp", 4).step


def test_those_between_hosts_as_well(tmp_path: Path) -> None:
    by_all, by_one_each = (collectives(one, 13.0, hosts=2) for one in SCOPES)
    found = planned(tmp_path, (16,), recorded(), wrapped(), by_all)
    assert "between hosts 10 GB/s in a training, as measured" in found.links
    step = timed(found, "ddp", 16)
    assert step.source == "by the measured step"
    # The passes could hide it; but what was seen within a host was not hidden either.
    assert step.exposed == pytest.approx(TRANSFER * 15 / 8)
    found = planned(tmp_path, (16,), recorded(), wrapped(), by_one_each)
    assert "not known between hosts" in found.links


def test_ranks_on_two_hosts_tell_nothing_of_one_host(tmp_path: Path) -> None:
    found = planned(tmp_path, (1, 2), recorded(ranks_per_host=1), wrapped())
    assert the(found, "ddp", 2).step is None
    assert timed(found, "one-gpu", 1).source == "by the measured step"


@pytest.mark.parametrize(
    ("sharding", "strategy"), [("all", "fsdp"), ("gradients", "fsdp-gradients")]
)
def test_fsdp_is_the_one_that_was_recorded(
    tmp_path: Path, sharding: str, strategy: Strategy
) -> None:
    found = planned(tmp_path, (2,), recorded(), wrapped("fsdp2", sharding=sharding))
    assert [row.strategy for row in found.rows if row.step is not None] == [strategy]
    assert timed(found, strategy, 2).source == "as measured"


@pytest.mark.parametrize("wrapping", [wrapped("fsdp2"), wrapped("none")], ids=["some FSDP", "none"])
def test_a_model_that_was_spread_otherwise_is_no_row(tmp_path: Path, wrapping: Wrapping) -> None:
    found = planned(tmp_path, (1, 2), recorded(), wrapping)
    assert [row.strategy for row in found.rows if row.step is not None] == ["one-gpu"]


def test_other_turns_compute_as_often_and_step_once(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    bundle.write(path, Evidence([recorded(turns=2), wrapped()]))
    measured = RunBundle([path]).step(ANY, None)
    assert (measured.turns, measured.micro_batch) == (2, 8)
    whole = measured.step(model(), ANY, ForecastRow(strategy="ddp", gpus=2, accumulation=2))
    assert whole is not None
    assert whole.source == "as measured"
    assert whole.seconds == pytest.approx(LOADING + OPTIMIZER + OWN + TRANSFER)
    once = measured.step(model(), ANY, ForecastRow(strategy="ddp", gpus=2))
    assert once is not None
    assert once.source == "by the measured step"
    assert once.seconds == pytest.approx((LOADING + OWN) / 2 + OPTIMIZER + TRANSFER)


def test_one_gpu_waits_for_nobody_in_whatever_turns(tmp_path: Path) -> None:
    path = tmp_path / "bundle.json"
    alone = msgspec.structs.replace(
        recorded(1), ranks=tuple(_alone(rank) for rank in recorded(1).ranks)
    )
    bundle.write(path, Evidence([alone, wrapped("none", ranks=1)]))
    measured = RunBundle([path]).step(ANY, None)
    for turns, source in ((1, "as measured"), (4, "by the measured step")):
        step = measured.step(
            model(), ANY, ForecastRow(strategy="one-gpu", gpus=1, accumulation=turns)
        )
        assert step is not None
        assert (step.source, step.exposed) == (source, 0.0)
        assert step.seconds == pytest.approx(turns * (LOADING + OWN) + OPTIMIZER)


def _alone(rank: RankSteps) -> RankSteps:
    """Without any transfer."""
    own = tuple(one for one in rank.phases if one.name not in BETWEEN_RANKS)
    return msgspec.structs.replace(rank, phases=own)


def test_a_sweep_has_steps_at_several_sizes(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    bundle.write(path, Evidence([swept(4)]))
    assert RunBundle([path]).step(ANY, None).micro_batch == 4
    assert RunBundle([path]).step(ANY, 29).micro_batch == 29
    found = RunBundle([path]).step(ANY, 4).step(model(), ANY, ForecastRow(strategy="ddp", gpus=2))
    assert found is not None
    assert found.seconds == pytest.approx(0.14)
    assert found.efficiency is None
    assert "no data loaded" in RunBundle([path]).step(ANY, 4).words
    with pytest.raises(DoctorError, match="pass --micro-batch 4 or 29, or measure 7"):
        RunBundle([path]).step(ANY, 7)


def test_a_bundle_of_a_whole_run_for_its_own_gpu(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    bundle.write(path, healthy())
    found = RunBundle([path]).step(find("h100-80"), None)
    assert (found.strategy, found.gpus, found.micro_batch) == ("ddp", 8, 8)
    with pytest.raises(DoctorError, match="measured on NVIDIA H100 80GB HBM3, and the plan is for"):
        RunBundle([path]).step(find("a100-80"), None)


def test_cpus_tell_nothing_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    bundle.write(path, Evidence([recorded(), wrapped()]))
    with pytest.raises(DoctorError, match="measured on CPUs"):
        RunBundle([path]).step(find("h100-80"), None)


def test_another_model_or_batch_is_no_measure(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    bundle.write(path, Evidence([recorded(), wrapped()]))
    with pytest.raises(DoctorError, match=r"of 50\.0M parameters, the plan is for one of 80"):
        RunBundle([path]).step(ANY, None).check(model(80e6))
    with pytest.raises(DoctorError, match="micro-batches of 8 samples: pass --micro-batch 8"):
        RunBundle([path]).step(ANY, 4)


def test_a_bundle_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    bundle.write(path, Evidence([collectives("within", 100.0)]))
    with pytest.raises(DoctorError, match="has no steps: record"):
        RunBundle([path]).step(ANY, None)


def test_a_step_in_another_precision_is_none_of_this_plan(tmp_path: Path) -> None:
    in_floats = RankUse(hosts=(), flags=(RankFlags(rank=0, parameter_dtype="float32"),))
    with pytest.raises(DoctorError, match="the run was in fp32, the plan is for bf16-mixed: pass"):
        planned(tmp_path, (2,), recorded(), wrapped(), in_floats)


def test_a_sharded_sweep_is_a_step_of_fsdp(tmp_path: Path) -> None:
    found = planned(tmp_path, (2,), msgspec.structs.replace(swept(8), sharded=True))
    source = {row.strategy: row.step.source for row in found.rows if row.step is not None}
    assert source["fsdp"] == "as measured"
    assert source.get("ddp") != "as measured"


def on(name: str) -> RankUse:
    return RankUse(hosts=(), flags=(RankFlags(rank=0, device_name=name),))


def test_the_gpu_of_a_run(tmp_path: Path) -> None:
    bundle.write(tmp_path / "run.json", Evidence([on("NVIDIA A100-SXM4-80GB")]))
    assert RunBundle([tmp_path / "run.json"]).device() == find("a100-80")


def test_what_a_sweep_found_there_goes_first(tmp_path: Path) -> None:
    bundle.write(tmp_path / "run.json", Evidence([swept(4, limits=(20.0, 24.0))]))
    found = RunBundle([tmp_path / "run.json"]).device()
    # On the fuller of both, with CUDA's own context.
    assert found.memory == 20 * 2**30 + CONTEXT
    bundle.write(tmp_path / "run.json", Evidence([swept(4, limits=(20.0, 24.0), played=True)]))
    assert RunBundle([tmp_path / "run.json"]).device().memory == 20 * 2**30


@pytest.mark.parametrize("name", ["", "Voodoo 2"])
def test_a_run_on_none_that_is_known(tmp_path: Path, name: str) -> None:
    bundle.write(tmp_path / "run.json", Evidence([on(name)]))
    with pytest.raises(DoctorError, match=r" names no known GPU: pass --gpu"):
        RunBundle([tmp_path / "run.json"]).device()
