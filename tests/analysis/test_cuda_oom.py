"""What the words of torch's allocator tell."""

from __future__ import annotations

import pytest

from ddoctor.analysis.cuda_oom import Kind, cases, of_kind, parts, read
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from tests.gpu_memory_error import CROWDED, OLD, PIECES, SENT_BY_RANKS, error, out_of_memory
from tests.training_run import ending, library, raised, run, user

GIB = 2**30


def gib(size: int) -> float:
    return round(size / GIB, 2)


def test_the_figures() -> None:
    told = read(error(device=3))
    assert told is not None
    assert (told.device, gib(told.wanted), gib(told.free), gib(told.total)) == (3, 2.0, 0.5, 79.15)
    assert (gib(told.allocated), gib(told.unused), gib(told.missing)) == (77.0, 0.78, 1.5)
    assert told.others == {}
    assert gib(told.unnamed) == 0.05


def test_as_it_was_before() -> None:
    told = read(OLD)
    assert told is not None
    assert (told.device, gib(told.total), gib(told.unused)) == (1, 11.17, 0.04)
    assert told.missing == 20 * 2**20 - round(3.19 * 2**20)


def test_spelt_as_in_torch_2_0() -> None:
    assert read(error().replace("capacity", "capacty")) == read(error())


def test_words_of_rocm_and_xpu() -> None:
    rocm, xpu = (read(error().replace("CUDA out", f"{name} out")) for name in ("HIP", "XPU"))
    assert rocm == read(error())
    assert xpu is not None
    assert (xpu.accelerator, xpu.device, gib(xpu.wanted)) == ("xpu", 0, 2.0)
    assert xpu.expanding(None) is None


def test_words_of_cudamallocasync() -> None:
    told = read(
        "Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 76.43 GiB\nRequested               : 2.00 GiB\n"
        "Device limit            : 79.15 GiB\nFree (according to CUDA): 7.00 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB"
    )
    assert told is not None
    assert (told.device, gib(told.allocated), gib(told.total)) == (1, 76.43, 79.15)
    assert (gib(told.missing), told.unnamed, told.unused) == (1.99, 0, 0)


def test_private_pools_are_part_of_what_is_allocated() -> None:
    pools = "allocated by PyTorch, with 3.00 GiB allocated in private pools (e.g., CUDA Graphs),"
    assert read(error().replace("allocated by PyTorch,", pools)) == read(error())


def test_others_by_their_numbers() -> None:
    told = read(error(own="50.00 GiB", others={77: "20.00 GiB", 78: "8.00 GiB"}))
    assert told is not None
    assert {pid: gib(size) for pid, size in told.others.items()} == {77: 20.0, 78: 8.0}


def test_in_a_container_it_does_not_know_itself() -> None:
    told = read(error(own=None, others={4711: "78.60 GiB"}))
    assert told is not None
    assert told.others == {}
    told = read(error(own=None, others={4711: "30.00 GiB", 12: "48.40 GiB"}, allocated="47.00 GiB"))
    assert told is not None
    assert list(told.others) == [4711]


def test_where_the_driver_names_nobody() -> None:
    told = read(error(own=None, allocated="50.00 GiB"))
    assert told is not None
    assert 26 < gib(told.unnamed) < 27


def test_no_more_than_it_is_allowed() -> None:
    told = read(error(free="40.00 GiB", allocated="38.00 GiB", more="39.50 GiB allowed; "))
    assert told is not None
    assert (gib(told.total), gib(told.free)) == (39.5, 0.72)


def test_graphs_have_pools_of_their_own() -> None:
    pools = "with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and"
    told = read(error().replace("by PyTorch, and", f"by PyTorch, {pools}"))
    assert told == read(error())


@pytest.mark.parametrize("message", ["", "out of memory", "CUDA error: out of memory", "Killed"])
def test_other_words(message: str) -> None:
    assert read(message) is None


LOADING = (
    user(9, "state = torch.load(path)"),
    library("torch/serialization.py", 1500, "load"),
    library("torch/serialization.py", 700, "_deserialize"),
)
GATHERING = (
    user(80, "save(model)"),
    library("torch/distributed/fsdp/_state_dict_utils.py", 300, "_full_pre_state_dict_hook"),
)
EVALUATING = (user(70, "validate(model)"), user(40, "model(x)", function="validate"))


@pytest.mark.parametrize(
    ("kind", "message", "rank", "stack", "steps"),
    [
        ("too-much", error(), 0, (), 0),
        ("too-much", error(), 0, (), 1),
        ("narrow", error(), 0, (), 200),
        ("pieces", PIECES, 0, (), 200),
        ("others", CROWDED, 0, (), 0),
        ("others", error(own=None, allocated="50.00 GiB"), 0, (), 0),
        ("ranks", SENT_BY_RANKS, 0, (), 0),
        ("loading", CROWDED, 1, LOADING, 0),
        ("others", CROWDED, 0, LOADING, 0),
        ("too-much", error(), 1, LOADING, 0),
        ("state-dict", error(), 1, GATHERING, 100),
        ("evaluation", error(), 1, EVALUATING, 100),
        # All of what torch has is in use, whatever its hint says.
        ("narrow", error(unused="6.00 GiB", allocated="72.00 GiB"), 0, (), 200),
        # Too little is unused to be enough.
        ("narrow", error(wanted="20.00 GiB", unused="9.00 GiB", allocated="69.00 GiB"), 0, (), 9),
    ],
)
def test_of_which_kind(
    kind: Kind, message: str, rank: int, stack: tuple[Frame, ...], steps: int
) -> None:
    first = out_of_memory(rank, message, stack=stack, steps=steps)
    others = [ending(one, "hung") for one in range(4) if one != rank]
    (case,) = cases(run(first, *others))
    assert case.kind == kind


def test_the_first_decides() -> None:
    section = run(
        out_of_memory(0, CROWDED, time=3.0),
        out_of_memory(1, PIECES, time=2.0),
        raised(2, "ValueError", time=1.0),
    )
    assert [one.rank.rank for one in of_kind(section, "pieces")] == [1]
    assert of_kind(section, "others") == []


def test_what_was_there_already() -> None:
    model = Wrapper(
        rank=0,
        kind="ddp",
        name="T",
        parameters=2 * GIB,
        parameter_bytes=8 * GIB,
        trainable_bytes=4 * GIB,
    )
    section = run(out_of_memory(0, steps=9, doing="backward"), optimizers=("AdamW",))
    (case,) = cases(section)
    told = parts(case, section, Wrapping(wrappers=(model,)))
    assert told is not None
    sizes = (told.parameters, told.gradients, told.optimizer, told.activations)
    assert [gib(size) for size in sizes] == [8.0, 4.0, 8.0, 57.0]
    assert parts(case, section, None) is None


def test_before_the_first_step_there_are_no_states() -> None:
    model = Wrapper(
        rank=0,
        kind="none",
        name="T",
        parameters=GIB,
        parameter_bytes=4 * GIB,
        trainable_bytes=4 * GIB,
    )
    section = run(out_of_memory(0, steps=0, doing="forward"), optimizers=("AdamW",))
    (case,) = cases(section)
    told = parts(case, section, Wrapping(wrappers=(model,)))
    assert told is not None
    assert (told.gradients, told.optimizer, gib(told.activations)) == (0, 0, 73.0)
