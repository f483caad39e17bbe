"""Memory snapshots of torch's allocator, in the published format."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from torch.cuda import _memory_viz

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.memory_snapshot import DeviceMemory, MemorySnapshots
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Severity
from ddoctor.reading import memory_snapshot, reader
from tests.memory_snapshot import (
    BACKWARD,
    BATCH,
    GIB,
    MIB,
    STATES,
    TO_DEVICE,
    Allocator,
    evaluating,
    forward,
    snapshot,
    told,
    write,
)


def trained(steps: int = 30, *, gib: int = 30, **fields: Any) -> Allocator:
    """A sound run after some steps: parameters, states, and a cache of free blocks."""
    made = Allocator(**fields)
    made.alloc(gib * GIB // 3, TO_DEVICE)
    made.step()
    made.alloc(2 * gib * GIB // 3, STATES)
    for _ in range(steps):
        made.step()
    made.segment((2 * GIB, None))
    return made


def fragmented(**fields: Any) -> Allocator:
    made = Allocator(**fields)
    made.alloc(20 * GIB, TO_DEVICE)
    for _ in range(30):
        made.segment((GIB, forward()), (GIB // 2, None))
    made.fail(3 * GIB, forward(), free=GIB)
    return made


def too_large() -> Allocator:
    made = Allocator()
    for _ in range(70):
        made.alloc(GIB, TO_DEVICE)
    made.fail(2 * GIB, TO_DEVICE)
    return made


def first_step() -> Allocator:
    made = Allocator()
    made.alloc(20 * GIB, TO_DEVICE)
    made.step()
    made.alloc(20 * GIB, BACKWARD)
    for _ in range(30):
        made.alloc(GIB, STATES)
    made.fail(GIB, STATES)
    return made


def later() -> Allocator:
    made = trained(gib=60)
    made.alloc(9 * GIB, forward())
    made.fail(GIB, forward())
    return made


def logits() -> Allocator:
    made = trained()
    for _ in range(400):
        made.alloc(100 * MIB, evaluating())
    made.fail(200 * MIB, evaluating(62))
    return made


def graphs(*, fails: bool = True) -> Allocator:
    """A list of losses keeps what each layer has saved."""
    made = trained(0)
    for _ in range(40):
        made.step(kept=[(300 * MIB, forward(line)) for line in (20, 21, 22)])
    if fails:
        made.fail(300 * MIB, forward())
    return made


SICK: dict[str, tuple[Callable[[], Allocator], str, Confidence]] = {
    "fragmented": (fragmented, "cuda-oom-fragmentation", Confidence.LIKELY),
    "too large": (too_large, "model-does-not-fit", Confidence.LIKELY),
    "first step": (first_step, "model-does-not-fit", Confidence.LIKELY),
    "later": (later, "memory-headroom-low", Confidence.LIKELY),
    "logits": (logits, "cuda-oom-eval-logits", Confidence.LIKELY),
    "graphs": (graphs, "autograd-graph-retained", Confidence.LIKELY),
}


@pytest.mark.parametrize("name", SICK)
def test_the_cause_comes_first(tmp_path: Path, name: str) -> None:
    made, cause, confidence = SICK[name]
    first = told(write(tmp_path, made(), rank=3)).findings[0]
    assert (first.cause, first.severity, first.confidence) == (cause, Severity.ERROR, confidence)
    assert first.where.ranks == (3,)
    assert first.fixes
    assert "rank 3" in first.because


def because(folder: Path, made: Allocator) -> str:
    return told(write(folder, made, rank=3)).findings[0].because


def test_what_is_told_of_the_memory(tmp_path: Path) -> None:
    assert because(tmp_path, fragmented()) == (
        "rank 3 ran out of memory on GPU 0 at model.py:12 in forward: it requested 3.00 GiB for "
        "activations, 1.00 GiB were free, and torch held 50.0 GiB; 15.0 of the 65.0 GiB that torch "
        "had reserved were unused, in blocks of at most 0.50 GiB"
    )
    assert "for optimizer states" in because(tmp_path, first_step())
    assert "30.0 optimizer states, 20.0 parameters, 20.0 gradients" in because(
        tmp_path, first_step()
    )
    assert "evaluation had allocated 39.1, most of it at train.py:60 in evaluate in 400 blocks" in (
        because(tmp_path, logits())
    )
    kept = because(tmp_path, graphs())
    assert "rank 3 kept 117 tensors of 40 steps, 34.3 of the 65.2 GiB" in kept
    assert "model.py:20 in forward and model.py:21 in forward" in kept


def flat() -> Allocator:
    return trained(200)


def warming_up() -> Allocator:
    """It allocates in its first steps only."""
    made = trained(0)
    for step in range(60):
        made.step(kept=[(300 * MIB, forward(line)) for line in (20, 21, 22) if step < 12])
    return made


def mostly_cached() -> Allocator:
    made = trained(20)
    for _ in range(100):
        made.segment((GIB // 2, None))
    return made


def expandable() -> Allocator:
    made = trained(20, expandable=True)
    for _ in range(50):
        made.segment((MIB, forward()), (100 * MIB, None))
    return made


def without_history() -> Allocator:
    made = Allocator()
    for _ in range(100):
        made.segment((GIB // 2, []), (GIB // 10, None))
    return made


def one_deep_step() -> Allocator:
    """One forward pass of a hundred equal layers, of which nothing is freed yet."""
    made = Allocator()
    made.alloc(10 * GIB, TO_DEVICE)
    for _ in range(100):
        made.alloc(100 * MIB, forward())
        made.brief(10 * MIB, forward())
    return made


def recovered() -> Allocator:
    """A search for the batch size meets a failure and goes on."""
    made = trained(3)
    made.fail(8 * GIB, forward())
    for _ in range(200):
        made.step()
    return made


def bank() -> Allocator:
    """It keeps the features of each step on purpose, and they fit."""
    made = trained(0)
    for _ in range(40):
        made.step(kept=[(300 * MIB, forward(20))])
    return made


def window() -> Allocator:
    """It keeps the losses of all steps, which are small."""
    made = trained(0)
    for _ in range(60):
        made.step(kept=[(512, forward(line)) for line in (20, 21, 22)])
    return made


def frees_left_out() -> Allocator:
    """As with skip_actions=["free_requested", "free_completed"]."""
    made = graphs(fails=False)
    made.trace = [one for one in made.trace if not one["action"].startswith("free")]
    return made


def empty() -> Allocator:
    return Allocator()


@pytest.mark.parametrize(
    "made",
    [
        flat,
        warming_up,
        mostly_cached,
        expandable,
        without_history,
        one_deep_step,
        recovered,
        bank,
        window,
        frees_left_out,
        empty,
    ],
)
def test_a_sound_run_is_quiet(tmp_path: Path, made: Callable[[], Allocator]) -> None:
    report = told(write(tmp_path, made()))
    assert report.findings == ()
    assert report.exit_code == 0


def test_several_devices_of_one_process_are_quiet(tmp_path: Path) -> None:
    devices = [trained(20, device=number, gib=9 * (number + 1)) for number in range(4)]
    assert told(write(tmp_path, *devices)).findings == ()
    (section,) = reader.read([tmp_path])[0].all(MemorySnapshots)
    assert [one.device for one in section.devices] == [0, 1, 2, 3]


def test_growth_without_a_failure_is_a_warning(tmp_path: Path) -> None:
    (found,) = told(write(tmp_path, graphs(fails=False))).findings
    assert (found.cause, found.severity) == ("autograd-graph-retained", Severity.WARNING)


def test_expandable_segments_need_no_setting(tmp_path: Path) -> None:
    fixes = told(write(tmp_path, fragmented(expandable=True))).findings[0].fixes
    assert not any("expandable_segments" in one.paste for one in fixes)
    fixes = told(write(tmp_path, fragmented())).findings[0].fixes
    assert any("expandable_segments" in one.paste for one in fixes)


@pytest.mark.parametrize(
    "fields", [{"stream": 7}, {"segment_pool_id": (0, 1)}, {"segment_type": "small"}]
)
def test_memory_of_another_pool_is_no_fragmentation(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    made = fragmented()
    for one in made.segments[1:]:
        one |= fields
    assert told(write(tmp_path, made)).findings[0].cause == "model-does-not-fit"


def test_another_process_holds_memory_of_one_gpu(tmp_path: Path) -> None:
    ranks = [trained(20, gib=70, device=number) for number in range(3)]
    short = Allocator(device=3)
    short.alloc(50 * GIB, TO_DEVICE)
    short.fail(2 * GIB, forward())
    paths = [write(tmp_path, one, rank=number) for number, one in enumerate([*ranks, short])]
    (found,) = told(*paths).findings
    assert (found.cause, found.where.ranks) == ("uneven-gpu-memory", (3,))
    assert found.cost is not None
    assert found.cost.value == 21.9
    assert found.where.devices == ("cuda:3",)


def test_ranks_that_failed_alike_have_no_guest(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        made = Allocator(device=rank)
        made.alloc(70 * GIB + rank * 500 * MIB, TO_DEVICE)
        made.fail(2 * GIB, forward())
        paths.append(write(tmp_path, made, rank=rank))
    (found,) = told(*paths).findings
    assert (found.cause, found.where.ranks) == ("model-does-not-fit", (0, 1, 2))


def guests(folder: Path, *, on: int) -> list[Path]:
    home = Allocator()
    home.alloc(60 * GIB, TO_DEVICE)
    home.fail(2 * GIB, forward())
    paths = [write(folder, home)]
    for rank in (1, 2, 3):
        own, first = Allocator(device=rank), Allocator(device=on)
        own.alloc(60 * GIB, TO_DEVICE)
        first.alloc(3 * GIB, BATCH)
        paths.append(write(folder, first, own, rank=rank))
    return paths


def test_ranks_that_also_use_the_first_gpu(tmp_path: Path) -> None:
    (found,) = told(*guests(tmp_path, on=0)).findings
    assert (found.cause, found.where.ranks) == ("gpu0-extra-memory", (0,))
    assert "ranks 1-3 hold 9.0 GiB of the same GPU, allocated at train.py:30 in load" in (
        found.because
    )


def test_ranks_that_use_another_gpu_as_well_explain_nothing(tmp_path: Path) -> None:
    found = told(*guests(tmp_path, on=5)).findings
    assert [one.cause for one in found] == ["model-does-not-fit"]


def test_an_unused_block_that_is_large_enough_is_no_fragmentation(tmp_path: Path) -> None:
    made = fragmented()
    made.segment((4 * GIB, None))
    assert told(write(tmp_path, made)).findings[0].cause == "model-does-not-fit"


def test_ten_thousand_ranks(tmp_path: Path) -> None:
    (section,) = reader.read([write(tmp_path, too_large())])[0].all(MemorySnapshots)
    rows = [replace(section.devices[0], rank=rank) for rank in range(10_000)]
    evidence = Evidence([replace(section, devices=tuple(rows))])
    (found,) = engine.examine(evidence, "diagnose").findings
    assert (found.cause, len(found.where.ranks)) == ("model-does-not-fit", 10_000)


def test_what_was_freed_since_the_failure_leaves_a_doubt(tmp_path: Path) -> None:
    made = first_step()
    made.brief(30 * GIB, forward())
    made.trace = [one for one in made.trace if one["size"] != 30 * GIB or one["action"] != "alloc"]
    found = told(write(tmp_path, made)).findings[0]
    assert (found.cause, found.confidence) == ("model-does-not-fit", Confidence.POSSIBLE)


def test_a_log_of_the_same_rank_is_not_told_twice(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 "
        "has a total capacity of 79.15 GiB of which 100.00 MiB is free. Process 4711 has 78.90 GiB "
        "memory in use. Of the allocated memory 77.90 GiB is allocated by PyTorch, and 100.00 MiB "
        "is reserved by PyTorch but unallocated.\n"
    )
    causes = [one.cause for one in told(log, write(tmp_path, too_large(), rank=3)).findings]
    assert causes == ["model-does-not-fit"]
    causes = [one.cause for one in told(log, write(tmp_path, graphs(), rank=3)).findings]
    assert causes == ["autograd-graph-retained"]


def read(path: Path) -> tuple[DeviceMemory, ...]:
    (section,) = reader.read([path])[0].all(MemorySnapshots)
    return section.devices


def test_sums_are_those_of_torchs_own_tool(tmp_path: Path) -> None:
    made = fragmented()
    made.segment((3 * GIB, None))
    (one,) = read(write(tmp_path, made))
    text = _memory_viz.segsum(snapshot(made))  # type: ignore[no-untyped-call]
    figures = dict(line.split(": ") for line in text.splitlines() if line.startswith("total"))
    assert figures["total_reserved"] == f"{one.reserved / GIB:.1f}GiB"
    assert figures["total_allocated"] == f"{one.allocated / GIB:.1f}GiB"
    assert figures["total_free"].startswith(f"{one.unused / GIB:.1f}GiB")


def test_each_holder_is_one_of_torchs_own_tool(tmp_path: Path) -> None:
    made = first_step()
    (one,) = read(write(tmp_path, made))
    lines: list[str] = []
    _memory_viz.memory(  # type: ignore[no-untyped-call]
        snapshot(made), format_flamegraph=lines.append
    )
    sizes = {line.rpartition(" ")[0]: 0 for line in lines[0].splitlines()}
    for line in lines[0].splitlines():
        name, _, size = line.rpartition(" ")
        sizes[name] += int(size)
    assert sorted(sizes.values()) == sorted(holder.bytes for holder in one.holders)


def as_torch_2_1(value: dict[str, Any]) -> dict[str, Any]:
    """Without what newer versions have added."""
    for segment in value["segments"]:
        for name in ("segment_pool_id", "is_expandable", "frames"):
            segment.pop(name)
    for event in value["device_traces"][0]:
        event.pop("time_us")
    return {name: value[name] for name in ("segments", "device_traces")}


def as_torch_2_13(value: dict[str, Any]) -> dict[str, Any]:
    for events in value["device_traces"]:
        for event in events:
            event |= {"compile_context": "", "user_metadata": "", "pool_id": (0, 0)}
            for frame in event["frames"]:
                frame["fx_node_op"] = "call_function"
    value["external_annotations"].append({"name": "## forward ##", "device": 0, "time_us": 1})
    return value


@pytest.mark.parametrize("as_written", [as_torch_2_1, as_torch_2_13])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_layouts_of_all_versions(
    tmp_path: Path, as_written: Callable[[dict[str, Any]], dict[str, Any]], protocol: int
) -> None:
    path = tmp_path / "rank_3.pickle"
    value = as_written(snapshot(fragmented()))
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    (one,) = read(path)
    assert (one.rank, one.reserved, one.allocated) == (3, 65 * GIB, 50 * GIB)
    assert one.failure is not None
    assert one.failure.line is not None
    assert told(path).findings[0].cause == "cuda-oom-fragmentation"


def test_segments_alone_as_memory_snapshot_returns_them(tmp_path: Path) -> None:
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps(snapshot(fragmented())["segments"]))
    (one,) = read(path)
    assert (one.rank, one.reserved, one.failure) == (None, 65 * GIB, None)
    assert told(path).findings == ()


def test_a_rank_has_one_snapshot(tmp_path: Path) -> None:
    for folder in ("iteration_10", "iteration_20"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, flat(), rank=3)
    evidence, (refused,) = reader.read([tmp_path])
    assert refused.name == "iteration_20/oom_rank3.pickle"
    assert "iteration_10/oom_rank3.pickle is a snapshot of the same rank" in refused.why
    assert len(evidence.all(MemorySnapshots)) == 1


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda value: value["segments"][0].update(total_size=2**60), "total_size"),
        (lambda value: value["segments"][0].update(blocks=7), "not iterable"),
        (lambda value: value["segments"][0]["blocks"][0].update(size=-1), "size"),
        (lambda value: value["device_traces"].append([7]), "object"),
        (lambda value: value["segments"][0]["blocks"][0].update(frames=7), "no list"),
        (lambda value: value["segments"][0].update(device=10**6), "device"),
        (lambda value: value.update(segments={}), None),
    ],
)
def test_a_damaged_snapshot_is_refused_in_one_line(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], why: str | None
) -> None:
    path = tmp_path / "oom.pickle"
    value = snapshot(fragmented())
    spoil(value)
    path.write_bytes(pickle.dumps(value))
    if why is None:
        assert read(path) == ()
        return
    with pytest.raises(DoctorError, match=why) as caught:
        reader.read([path])
    assert "\n" not in str(caught.value)


def test_one_list_that_is_named_many_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_snapshot, "MOST_ROWS", 1_000)
    made = Allocator()
    made.segment(*[(MIB, BATCH)] * 100)
    value = snapshot(made)
    value["segments"] *= 100
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(DoctorError, match="more than 1000 blocks and events"):
        reader.read([path])
    monkeypatch.undo()
    assert read(path)[0].reserved == 10_000 * MIB
    monkeypatch.setattr(memory_snapshot, "MOST_LINES", 1)
    with pytest.raises(DoctorError, match="more than 1 different frames"):
        reader.read([path])


def test_a_class_in_the_pickle_is_not_built(tmp_path: Path) -> None:
    path = tmp_path / "oom.pickle"
    path.write_bytes(pickle.dumps({**snapshot(flat()), "device_traces": io.BytesIO}))
    with pytest.raises(DoctorError, match="more than plain data"):
        reader.read([path])
