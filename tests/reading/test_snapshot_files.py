"""How files of memory snapshots are read: their layouts, their sums, and damage."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from ddoctor.errors import DoctorError
from ddoctor.evidence.memory_snapshot import DeviceMemory, MemorySnapshots
from ddoctor.reading import memory_snapshot, reader
from tests.memory_snapshot import (
    BATCH,
    GIB,
    MIB,
    Allocator,
    snapshot,
    told,
    write,
)
from tests.reading.snapshots_made import (
    first_step,
    flat,
    fragmented,
)


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
