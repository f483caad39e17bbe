from __future__ import annotations

import msgspec
import pytest

from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.loading import Loader, Loading
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.models import Severity
from tests.analysis.test_live_loop import at, rank
from tests.conftest import Findings
from tests.live_look import (
    COLLATING,
    FETCH,
    LINE,
    STARVED,
    WAITING,
    loading_itself,
    look,
    moving,
    standing,
)
from tests.training_loaders import loader_with
from tests.training_run import library, user
from tests.training_steps import lines, origin

CAUSE = "collate-bottleneck"
COUNT = 60


def steps(*loaded: float, to_device: float = 0.0, rest: float = 0.0, device: str = "cuda") -> Steps:
    """Ranks that are in the loader for so long in each step, and do 0.04 s of other work."""
    latest = max(loaded)
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=rank, host=f"node-{rank}", device=f"{device}:{rank}"),
                phases=(
                    Phase(name="loader", seconds=(one,) * COUNT),
                    Phase(name="to-device", seconds=(to_device,) * COUNT),
                    Phase(name="forward", seconds=(0.04,) * COUNT),
                    Phase(name="waiting", seconds=(latest - one,) * COUNT),
                    Phase(name="rest", seconds=(rest,) * COUNT),
                ),
            )
            for rank, one in enumerate(loaded)
        ),
    )


def loader(rank: int = 0, fetch: float = 0.01, collate: float = 0.05, **more: object) -> Loader:
    """A loader that needs so many seconds for the items of a batch, and to collate them."""
    plain = loader_with(
        rank=rank,
        host=f"node-{rank}",
        dataset="Texts",
        batches=1000,
        num_workers=0,
        prefetch_factor=None,
        fetched=32 * COUNT,
        fetch_seconds=fetch * COUNT,
        collated=COUNT,
        collate_seconds=collate * COUNT,
        collate="pad_and_tokenise",
        taken=COUNT,
        wait_seconds=(0.0,) * COUNT,
        wait_steps=tuple(range(COUNT)),
    )
    return msgspec.structs.replace(plain, **more)


def loading(*loaders: Loader) -> Loading:
    return Loading(loaders=loaders)


def test_collate_takes_longer_than_the_items(findings: Findings) -> None:
    (finding,) = findings(CAUSE, steps(0.06, 0.06), loading(loader(0), loader(1)))
    assert "of the 0.060 s per batch" in finding.because
    assert "pad_and_tokenise takes 0.050 s" in finding.because
    assert finding.where.ranks == ()
    assert finding.fixes[0].settings == ("loader.num_workers=2",)
    assert "pad_and_tokenise" in finding.fixes[1].paste


def test_torchs_own_only_stacks(findings: Findings) -> None:
    section = loading(msgspec.structs.replace(loader(), collate="default_collate"))
    (finding,) = findings(CAUSE, steps(0.06), section)
    assert "less to stack" in finding.fixes[-1].summary
    assert "collate_fn" not in finding.fixes[-1].paste


def test_on_one_rank(findings: Findings) -> None:
    section = loading(loader(0, fetch=0.001, collate=0.001), loader(1))
    (finding,) = findings(CAUSE, steps(0.002, 0.06), section)
    assert finding.where.ranks == (1,)
    assert finding.where.hosts == ("node-1",)


TOKENISES = {("rest", 7, "ids = tokenise(texts)"): 30, ("forward", 9, "model(ids)"): 60}
ON_BATCHES = (origin(5, gives=True), origin(7))


def test_the_training_process_works_on_what_workers_made(findings: Findings) -> None:
    section = loading(loader(num_workers=4, fetch=0.1, collate=0.01, collate_in_main=0.03))
    (finding,) = findings(
        CAUSE, steps(0.005, rest=0.03), section, lines(TOKENISES, origins=ON_BATCHES)
    )
    assert "rank 0 works 0.030 s of each step on batches between the loader" in finding.because
    assert finding.because.endswith("mostly at train.py:7 in main (`ids = tokenise(texts)`)")
    assert finding.cost is not None
    assert finding.cost.value == 0.4
    assert "num_workers=4, collate_fn=collate" in finding.fixes[0].paste


def test_quiet_about_a_teacher_that_computes_before_the_model(findings: Findings) -> None:
    section = loading(loader(num_workers=4, fetch=0.1, collate=0.01, collate_in_main=0.03))
    teaches = {("rest", 7, "wanted = teacher(batch)"): 30, ("forward", 9, "model(batch)"): 60}
    met = lines(teaches, origins=(origin(5, gives=True),))
    ranks = tuple(
        msgspec.structs.replace(
            one,
            lines=tuple(
                msgspec.structs.replace(line, inner="modules/linear.py:forward")
                if line.phase == "rest"
                else line
                for line in one.lines
            ),
        )
        for one in met.ranks
    )
    timed = steps(0.005, rest=0.03)
    assert findings(CAUSE, timed, section, met) != ()
    assert findings(CAUSE, timed, section, msgspec.structs.replace(met, ranks=ranks)) == ()


@pytest.mark.parametrize(("other", "told"), [(0.03, 1), (0.02, 1), (0.01, 0), (0.0, 0)])
def test_what_one_rank_alone_does_is_no_matter_of_collate(
    findings: Findings, other: float, told: int
) -> None:
    ranks = [
        loader(rank, num_workers=4, fetch=0.1, collate=0.01, collate_in_main=work)
        for rank, work in enumerate((0.03, other))
    ]
    section = loading(*ranks)
    assert len(findings(CAUSE, steps(0.005, 0.005, rest=0.03), section, lines({}))) == told


def test_the_training_process_works_on_what_it_loads_itself(findings: Findings) -> None:
    section = loading(loader(fetch=0.001, collate=0.001, collate_in_main=0.03))
    (finding,) = findings(CAUSE, steps(0.002, rest=0.03), section, lines({}))
    assert "num_workers=2, collate_fn=collate" in finding.fixes[0].paste


def test_work_on_batches_of_no_loader(findings: Findings) -> None:
    (finding,) = findings(
        CAUSE, steps(0.0, rest=0.03), loading(), lines(TOKENISES, origins=ON_BATCHES)
    )
    assert "all ranks spend 0.03 s of a step of" in finding.because
    assert finding.because.endswith("mostly at train.py:7 in main (`ids = tokenise(texts)`)")
    assert finding.severity is Severity.WARNING
    assert "num_workers=2" in finding.fixes[0].paste


@pytest.mark.parametrize(
    ("work", "loaded", "rest"),
    [
        # After the model, on something else, too little, less than the wait for the loader.
        (("rest", 12, "scores = rank(logits)"), 0.0, 0.03),
        (("rest", 6, "adjust(schedule)"), 0.0, 0.03),
        (("rest", 7, "ids = tokenise(texts)"), 0.0, 0.003),
        (("rest", 7, "ids = tokenise(texts)"), 0.04, 0.03),
    ],
)
def test_quiet_where_no_batch_is_prepared(
    findings: Findings, work: tuple[str, int, str], loaded: float, rest: float
) -> None:
    met = lines({work: 30, ("forward", 9, "model(ids)"): 60}, origins=ON_BATCHES)
    assert findings(CAUSE, steps(loaded, rest=rest), loading(loader(fetch=0.04)), met) == ()


def test_copies_from_pageable_memory(findings: Findings) -> None:
    section = loading(loader(0, pin_memory=False), loader(1, pin_memory=True))
    (finding,) = findings(CAUSE, steps(0.001, 0.001, to_device=0.02), section)
    assert finding.where.ranks == (0,)
    assert finding.fixes[0].settings == ("loader.pin_memory=true",)


@pytest.mark.parametrize(
    ("section", "loaded"),
    [
        # The items are the slow part.
        (loader(fetch=0.05, collate=0.01), 0.06),
        # Neither alone is.
        (loader(fetch=0.03, collate=0.035), 0.06),
        # Collate is long, but nobody waits for it.
        (loader(num_workers=4), 0.001),
        (loader(num_workers=4, collate_in_main=0.003), 0.003),
        # The workers are fast enough, and something else takes the time.
        (loader(num_workers=12, fetch=0.001, collate=0.05), 0.02),
        # Seconds of no batch at all: a damaged bundle.
        (loader(collated=0), 0.06),
        # The process's own part is the smaller one.
        (loader(num_workers=2, fetch=0.3, collate=0.02, collate_in_main=0.02), 0.08),
        # Nothing was timed.
        (loader(collated=0, fetch=0.0, collate=0.0), 0.06),
    ],
)
def test_quiet_where_it_is_something_else(
    findings: Findings, section: Loader, loaded: float
) -> None:
    assert findings(CAUSE, steps(loaded), loading(section)) == ()


@pytest.mark.parametrize(
    ("pinned", "to_device", "device"),
    [(True, 0.02, "cuda"), (False, 0.002, "cuda"), (False, 0.02, "cpu")],
)
def test_quiet_about_copies_that_are_short_or_cannot_be_helped(
    findings: Findings, pinned: bool, to_device: float, device: str
) -> None:
    section = loading(loader(pin_memory=pinned))
    assert findings(CAUSE, steps(0.001, to_device=to_device, device=device), section) == ()


def copied(section: Steps, *, pageable: int = 0, pinned: int = 0) -> Steps:
    """The same, with bytes that were copied in each step."""
    counts = {"pageable_bytes": (pageable,) * COUNT, "pinned_bytes": (pinned,) * COUNT}
    return msgspec.structs.replace(
        section, ranks=tuple(msgspec.structs.replace(one, **counts) for one in section.ranks)
    )


COPIES = {("to-device", 54, "volume = study[first:last].to(device)"): 60}


def test_copies_from_pageable_memory_without_a_loader(findings: Findings) -> None:
    section = copied(steps(0.0, to_device=0.16), pageable=2**30)
    (finding,) = findings(CAUSE, section, lines(COPIES))
    assert finding.severity is Severity.WARNING
    assert "1.07 GB at 6.71 GB/s" in finding.because
    assert "train.py:54" in finding.because
    assert "pin_memory=True" in finding.fixes[0].paste
    assert finding.cost is not None
    assert finding.cost.value == pytest.approx(0.8)


def test_copies_from_pinned_memory_that_the_step_waits_for(findings: Findings) -> None:
    section = copied(steps(0.001, to_device=0.02), pinned=2**30)
    (finding,) = findings(CAUSE, section, loading(loader(pin_memory=False)))
    assert "come from pinned memory" in finding.because
    assert "torch.cuda.Stream" in finding.fixes[0].paste


def test_pageable_batches_of_a_loader_that_pins(findings: Findings) -> None:
    section = copied(steps(0.001, to_device=0.02), pageable=2**30)
    (finding,) = findings(CAUSE, section, loading(loader(pin_memory=True)))
    assert "from pageable memory" in finding.because


@pytest.mark.parametrize(
    ("to_device", "device", "bytes_each"),
    [(0.002, "cuda", 2**30), (0.02, "cpu", 2**30), (0.02, "cuda", 0)],
)
def test_quiet_about_short_copies_without_a_loader(
    findings: Findings, to_device: float, device: str, bytes_each: int
) -> None:
    section = copied(steps(0.001, to_device=to_device, device=device), pageable=bytes_each)
    assert findings(CAUSE, section, lines(COPIES)) == ()


FORWARD = {"forward": 85, "backward-or-wait": 10, "optimizer": 5}


def test_live_workers_that_put_batches_together(findings: Findings) -> None:
    live = look(*(moving(one, STARVED, workers=2, makes=COLLATING) for one in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert finding.where.ranks == (0, 1)
    assert "train.py:20 in collate" in finding.because
    assert "2 workers" in finding.because
    assert "do less in collate" in finding.fixes[0].summary


def test_live_workers_that_stack(findings: Findings) -> None:
    makes = (FETCH, library("torch/utils/data/_utils/collate.py", 366, "default_collate"))
    live = look(*(moving(one, STARVED, workers=2, makes=makes) for one in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert "less to stack" in finding.fixes[0].summary


def test_live_ranks_that_work_on_each_batch(findings: Findings) -> None:
    texts = (*at(15, "ids = tokenise(texts)"), user(3, "row.append(word)", "tokenise"))
    (finding,) = findings(CAUSE, look(*(rank(one, (42, texts)) for one in (0, 1))))
    assert finding.severity is Severity.WARNING
    assert "42% of the time on the batch between the loader and the model" in finding.because
    assert "train.py:15 in train (`ids = tokenise(texts)`)" in finding.because
    assert "into the workers" in finding.fixes[0].summary


def test_one_live_rank_whose_worker_puts_batches_together(findings: Findings) -> None:
    late = moving(1, {**STARVED, "loader-wait": 70}, asleep=0.05, workers=1, makes=COLLATING)
    (finding,) = findings(CAUSE, look(moving(0, WAITING, asleep=0.75), late))
    assert finding.where.ranks == (1,)


@pytest.mark.parametrize(
    "live",
    [
        # The items are read; the workers have nothing to do; nobody waits for them.
        look(*(moving(one, STARVED, workers=2) for one in (0, 1))),
        look(*(moving(one, STARVED, workers=2, makes=(LINE,)) for one in (0, 1))),
        look(*(moving(one, workers=2, makes=COLLATING) for one in (0, 1))),
        # Another rank is later.
        look(moving(0, WAITING, asleep=0.75, workers=1, makes=COLLATING), moving(1, FORWARD)),
        look(standing(0, "loader-wait", LINE), standing(1, "loader-wait", LINE)),
    ],
)
def test_quiet_on_a_live_run(findings: Findings, live: LiveLook) -> None:
    assert findings(CAUSE, live) == ()


@pytest.mark.parametrize(
    ("by", "where"), [("collate", "train.py:20 in collate"), ("default_collate", "of torch")]
)
def test_a_live_rank_that_collates_itself(findings: Findings, by: str, where: str) -> None:
    live = look(*(loading_itself(one, 10, 30, by=by) for one in (0, 1)))
    (finding,) = findings(CAUSE, live)
    assert where in finding.because


def test_quiet_where_a_live_rank_mostly_reads_items_itself(findings: Findings) -> None:
    live = look(*(loading_itself(one, 30, 10) for one in (0, 1)))
    assert findings(CAUSE, live) == ()
    assert findings(CAUSE, look(*(loading_itself(one, 1, 4) for one in (0, 1)))) == ()
