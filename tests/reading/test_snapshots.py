"""Memory snapshots of torch's allocator, in the published format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence.memory_snapshot import MemorySnapshots
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Severity
from ddoctor.reading import reader
from tests.memory_snapshot import (
    BATCH,
    GIB,
    MIB,
    TO_DEVICE,
    Allocator,
    forward,
    told,
    write,
)
from tests.reading.snapshots_made import (
    bank,
    empty,
    expandable,
    first_step,
    flat,
    fragmented,
    frees_left_out,
    graphs,
    later,
    logits,
    mostly_cached,
    one_deep_step,
    recovered,
    too_large,
    trained,
    warming_up,
    window,
    without_history,
)

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
