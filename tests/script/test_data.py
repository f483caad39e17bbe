"""Samplers, shards, workers and generators: which samples each rank and worker gets."""

from __future__ import annotations

import pytest

from ddoctor import engine
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.section import Evidence
from ddoctor.models import Confidence, Severity
from tests.script.conftest import Read, Review
from tests.script.sources import ACCELERATE, CLASSES, HEAD, LOADER, ddp, in_functions
from tests.training_loaders import loader_with

PLAIN_LOADER = "loader = DataLoader(data, shuffle=True, num_workers=4, persistent_workers=True)"
PART = "dist.init_process_group('gloo')\nmodel = DDP(Net())\n"


@pytest.mark.parametrize("style", [str, in_functions])
def test_set_epoch_is_missing(review: Review, style: type[str]) -> None:
    found = review(style(ddp(each_epoch="")))
    assert found.keys() == {"missing-set-epoch"}
    finding = found["missing-set-epoch"]
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "`sampler = DistributedSampler(data)`" in finding.because
    assert "sampler.set_epoch(epoch)" in finding.fixes[0].paste


@pytest.mark.parametrize("seed", ["args.seed + rank", "dist.get_rank()", "17 * local_rank"])
def test_each_rank_shuffles_by_another_seed(review: Review, seed: str) -> None:
    made = f"DistributedSampler(data, seed={seed})"
    found = review(ddp(loader=LOADER.replace("DistributedSampler(data)", made)))
    assert found.keys() == {"duplicate-data-across-ranks"}
    assert f"shuffles by `{seed}`" in found["duplicate-data-across-ranks"].because


UNUSED = LOADER.replace("sampler=sampler, ", "shuffle=True, ")


@pytest.mark.parametrize("style", [str, in_functions])
def test_a_sampler_that_no_loader_gets(review: Review, style: type[str]) -> None:
    found = review(style(ddp(loader=UNUSED)))
    assert found.keys() == {"duplicate-data-across-ranks"}
    finding = found["duplicate-data-across-ranks"]
    assert "`sampler = DistributedSampler(data)`" in finding.because
    assert "sampler=sampler" in finding.fixes[0].paste
    assert "shuffle" not in finding.fixes[0].paste


@pytest.mark.parametrize(
    "loader",
    [
        LOADER.replace("DistributedSampler(data)", "DistributedSampler(data, seed=args.seed)"),
        f"{UNUSED}loader = rebuilt(loader, sampler)",
        f"{UNUSED}loader.sampler = sampler",
        f"{LOADER}val_sampler = DistributedSampler(val, seed=rank)",
        f"{LOADER}val_sampler = DistributedSampler(val)",
        LOADER.replace("sampler=sampler", "batch_sampler=BatchSampler(sampler, 8, True)"),
    ],
)
def test_quiet_where_the_sampler_is_used(review: Review, loader: str) -> None:
    assert "duplicate-data-across-ranks" not in review(ddp(loader=loader))


STILL = "DistributedSampler(data, shuffle=False)"


def test_set_epoch_of_a_sampler_that_does_not_shuffle(review: Review) -> None:
    finding = review(ddp(loader=LOADER.replace("DistributedSampler(data)", STILL)))[
        "missing-set-epoch"
    ]
    assert finding.severity is Severity.NOTE
    assert f"(`sampler = {STILL}`) does not shuffle" in finding.because


@pytest.mark.parametrize(
    ("loader", "each_epoch"),
    [
        (LOADER.replace("DistributedSampler(data)", STILL), "pass"),
        (LOADER + f"val_sampler = {STILL}", "val_sampler.set_epoch(0)\nsampler.set_epoch(epoch)"),
        (LOADER, "sampler.set_epoch(epoch)"),
    ],
)
def test_quiet_where_nothing_is_without_effect(
    review: Review, loader: str, each_epoch: str
) -> None:
    assert "missing-set-epoch" not in review(ddp(loader=loader, each_epoch=each_epoch))


def test_set_epoch_is_missing_in_a_class(review: Review) -> None:
    found = review(CLASSES.replace("self.sampler.set_epoch(epoch)", "pass"))
    assert found.keys() == {"missing-set-epoch"}
    assert "self.sampler.set_epoch(epoch)" in found["missing-set-epoch"].fixes[0].paste


@pytest.mark.parametrize(
    "source",
    [
        ddp(each_epoch="loader.sampler.set_epoch(epoch)"),
        ddp(
            each_epoch="",
            loader="sampler = DistributedSampler(data, shuffle=False)\n"
            "loader = DataLoader(data, sampler=sampler, num_workers=2, persistent_workers=True)",
        ),
        # accelerate calls it.
        ddp(head="import accelerate", each_epoch=""),
        # A single pass.
        ddp(each_epoch="").replace("for epoch in range(10):", "if True:"),
    ],
)
def test_quiet_where_the_order_changes_or_need_not(review: Review, source: str) -> None:
    assert review(source) == {}


def test_quiet_where_a_module_calls_set_epoch(review: Review) -> None:
    source = ddp(head="from own import start", each_epoch="start(sampler, epoch)")
    module = "def start(sampler, epoch):\n    sampler.set_epoch(epoch)\n"
    assert review(source, {"own.py": module}) == {}


@pytest.mark.parametrize("seed", ["", "torch.manual_seed(1 + dist.get_rank())\n"])
def test_every_rank_reads_everything(review: Review, seed: str) -> None:
    found = review(ddp(set_up=f"{PART}{seed}data = Images()", loader=PLAIN_LOADER, each_epoch=""))
    assert found.keys() == {"duplicate-data-across-ranks"}
    finding = found["duplicate-data-across-ranks"]
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    paste = finding.fixes[0].paste
    assert "sampler = torch.utils.data.DistributedSampler(data)" in paste
    assert "sampler=sampler" in paste
    assert "shuffle" not in paste


@pytest.mark.parametrize(
    "source",
    [
        # The rank selects files or samples.
        ddp(set_up=f"{PART}data = Images(dist.get_rank())", loader=PLAIN_LOADER, each_epoch=""),
        ddp(
            set_up=f"{PART}rank = dist.get_rank()\ndata = Images()[rank :: dist.get_world_size()]",
            loader=PLAIN_LOADER,
            each_epoch="",
        ),
        # A sampler of the user's own, or arguments that the source does not show.
        ddp(loader="loader = DataLoader(data, batch_sampler=Batches(data))", each_epoch="").replace(
            "Batches(data))", "Batches(data), num_workers=2, persistent_workers=True)"
        ),
        ddp(loader="loader = DataLoader(data, **options)", each_epoch=""),
        # Only the evaluation.
        ddp(loader=PLAIN_LOADER.replace("loader =", "val_loader ="), each_epoch=""),
        # A single process.
        f"{HEAD}\nloader = DataLoader(Images(), shuffle=True, num_workers=4)\n",
        ACCELERATE,
    ],
)
def test_quiet_where_anything_may_share_the_samples_out(review: Review, source: str) -> None:
    # Parts of different sizes are another matter, and a note.
    assert review(source).keys() <= {"uneven-inputs-per-rank"}


STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        for line in open(self.path):
            yield line
"""
OF_STREAM = "loader = DataLoader(Stream(), num_workers=4, persistent_workers=True)"


def test_a_stream_without_shards(review: Review) -> None:
    found = review(ddp(head=STREAM, loader=OF_STREAM, each_epoch=""))
    assert found.keys() == {"iterable-dataset-not-sharded"}
    finding = found["iterable-dataset-not-sharded"]
    assert finding.severity is Severity.WARNING
    assert "every rank and worker reads the whole stream" in finding.because


def test_a_stream_without_shards_of_workers(review: Review) -> None:
    one = f"{HEAD}{STREAM}loader = DataLoader(Stream(), num_workers=4, persistent_workers=True)"
    assert "every worker reads" in review(one)["iterable-dataset-not-sharded"].because


@pytest.mark.parametrize(
    "body",
    [
        "rank, info = os.environ['RANK'], torch.utils.data.get_worker_info()",
        "yield from self.share(dist.get_rank(), dist.get_world_size())",
        "yield from itertools.islice(self.items, self.first, None, self.parts)",
        # Random samples need no shards.
        "yield torch.randint(100, (8,))",
    ],
)
def test_quiet_where_the_stream_may_be_shared_out(review: Review, body: str) -> None:
    head = STREAM.replace("for line in open(self.path):\n            yield line", body)
    assert review(ddp(head=head, loader=OF_STREAM, each_epoch="")) == {}


def test_quiet_about_a_stream_in_the_training_process(review: Review) -> None:
    assert review(f"{HEAD}{STREAM}loader = DataLoader(Stream(), num_workers=1)") == {}


AUGMENTED = """
import numpy as np

class Augmented(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.images[index] + self.rng.normal()
"""
OF_AUGMENTED = (
    "sampler = DistributedSampler(data)\n"
    "loader = DataLoader(data, sampler=sampler, num_workers=4, persistent_workers=True)"
)


def augmented(head: str = AUGMENTED, loader: str = OF_AUGMENTED) -> str:
    return ddp(head=head, loader=f"data = Augmented()\n{loader}").replace("data = Images()\n", "")


def test_a_generator_that_each_worker_copies(review: Review) -> None:
    found = review(augmented())
    assert found.keys() == {"identical-rng-across-workers"}
    finding = found["identical-rng-across-workers"]
    assert "`self.rng = np.random.default_rng(0)`" in finding.because
    assert "info.dataset.rng" in finding.fixes[0].paste
    assert "worker_init_fn=seed_worker" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "source",
    [
        # torch seeds these in each worker.
        augmented(AUGMENTED.replace("self.rng.normal()", "np.random.normal()")),
        augmented(AUGMENTED.replace("self.rng.normal()", "torch.randn(())")),
        augmented(loader=OF_AUGMENTED.replace("num_workers=4", "num_workers=1")),
        augmented(loader=OF_AUGMENTED.replace("num_workers", "worker_init_fn=seed, num_workers")),
        # Drawn once, in the constructor.
        augmented(AUGMENTED.replace("+ self.rng.normal()", "")),
        # A name of the constructor's own, and of another method's own.
        augmented(
            AUGMENTED.replace("self.rng =", "rng =").replace(
                "return self.images[index] + self.rng", "rng = fresh()\n        return rng"
            )
        ),
        # Made again in each item.
        augmented(AUGMENTED.replace("self.rng.normal()", "np.random.default_rng(index).normal()")),
    ],
)
def test_quiet_where_workers_draw_different_numbers(review: Review, source: str) -> None:
    assert review(source) == {}


ON_GPU = """
class OnGpu(Dataset):
    def __getitem__(self, index):
        return self.images[index].cuda()
"""


def test_cuda_in_forked_workers(review: Review) -> None:
    loader = "loader = DataLoader(OnGpu(), num_workers=2, persistent_workers=True)"
    finding = review(f"{HEAD}{ON_GPU}{loader}")["dataloader-fork-unsafe"]
    assert finding.severity is Severity.ERROR
    assert "self.images[index].cuda()" in finding.because
    spawned = loader.replace("num_workers", "multiprocessing_context='spawn', num_workers")
    assert review(f"{HEAD}{ON_GPU}{spawned}") == {}
    assert review(f"{HEAD}{ON_GPU}loader = DataLoader(OnGpu(), num_workers=0)") == {}
    start = "torch.multiprocessing.set_start_method('spawn')\n"
    assert review(f"{HEAD}{ON_GPU}{start}{loader}") == {}


def test_workers_are_only_noted(review: Review) -> None:
    alone = review(
        ddp(loader="sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)")
    )
    assert alone["dataloader-bottleneck"].severity is Severity.NOTE
    assert "num_workers=4" in alone["dataloader-bottleneck"].fixes[0].paste
    again = review(
        ddp(
            each_epoch="sampler.set_epoch(epoch)\nloader = DataLoader(data, "
            "sampler=sampler, num_workers=4)"
        )
    )
    finding = again["worker-restart-each-epoch"]
    assert finding.severity is Severity.NOTE
    assert "is made again in each epoch" in finding.because


def test_the_evaluation_is_not_shared_out(review: Review) -> None:
    more = "val_loader = DataLoader(Images(), num_workers=4)\n"
    found = review(ddp(loader=LOADER + more))
    assert found.keys() == {"duplicate-data-across-ranks"}
    (note,) = found.values()
    assert note.severity is Severity.NOTE
    assert "(`val_loader = DataLoader(Images(), num_workers=4)`) has no sampler" in note.because
    for quiet in (
        more.replace("num_workers", "sampler=part, num_workers") + "dist.all_reduce(counts)\n",
        f"if dist.get_rank() == 0:\n    {more}",
        more.replace("val_loader", "other").replace("4)", "4, persistent_workers=True)"),
        f"mine = Subset(images, range(rank, len(images), 8))\n{more.replace('Images()', 'mine')}",
        f"mine = Subset(images, range(gpu, 99, world))\n{more.replace('Images()', 'mine')}",
    ):
        assert review(ddp(loader=LOADER + quiet)) == {}


def test_a_loader_that_is_made_in_each_epoch(review: Review) -> None:
    made = "loader = DataLoader(data, sampler=sampler, num_workers=4, persistent_workers=True)"
    (note,) = review(ddp(before=made)).values()
    assert (note.cause, note.severity) == ("worker-restart-each-epoch", Severity.NOTE)
    assert "is made again in each epoch" in note.because
    assert note.fixes[0].summary.startswith("make it once, before the loop over epochs")


def test_a_process_is_forked_after_cuda(review: Review) -> None:
    fork = "mp.Process(target=log).start()\n"
    source = ddp(head="import multiprocessing as mp", loader=LOADER + fork)
    found = review(source)
    assert found.keys() == {"dataloader-fork-unsafe"}
    (note,) = found.values()
    assert note.severity is Severity.NOTE
    assert "(`torch.cuda.set_device(local_rank)`) has used CUDA" in note.because
    for quiet in (
        source.replace(fork, f"mp.set_start_method('spawn')\n{fork}"),
        source.replace(fork, fork.replace("mp.", "mp.get_context('spawn').")),
        source.replace(fork, f"if logs:\n    {fork}"),
        ddp(head=f"import multiprocessing as mp\n{fork}"),
    ):
        assert review(quiet) == {}


@pytest.mark.parametrize("by_epoch", [True, False, None])
def test_a_run_with_a_second_epoch_settles_whether_set_epoch_is_missing(
    script: Read, by_epoch: bool | None
) -> None:
    loader = loader_with(shuffle=True, replicas=2, taken=60, seeded_by_epoch=by_epoch)
    sections = [script(ddp(each_epoch="")), Loading(loaders=(loader,))]
    report = engine.examine(Evidence(sections), "run")
    found = [one for one in report.findings if one.cause == "missing-set-epoch"]
    assert len(found) == (by_epoch is not True)
    if by_epoch is None:
        assert "no line of the script calls set_epoch" in found[0].because


UNEVEN = ACCELERATE.replace("steps=4)", "steps=4, even_batches=False)")
JOINED = UNEVEN.replace("        total = 0", "        accelerator.join_uneven_inputs([model])")


@pytest.mark.parametrize(("source", "wrong"), [(UNEVEN, True), (JOINED, False)])
def test_uneven_batches_that_nothing_joins(review: Review, source: str, wrong: bool) -> None:
    assert ("uneven-inputs-per-rank" in review(source)) is wrong


SPLIT = """
from torch.utils.data import random_split

def seed_all(seed):
    torch.manual_seed(seed)

class Run:
    def __init__(self, rank):
        seed_all({seed})

    def divided(self):
        return random_split(Images(), [900, 100])
"""


@pytest.mark.parametrize(
    ("seed", "given", "line"),
    [
        ("7 + rank", "dist.get_rank()", "seed_all(7 + rank)"),
        ("rank", "3 * dist.get_rank()", "data, held_out = Run(3 * dist.get_rank()).divided()"),
    ],
)
def test_the_line_that_seeds_each_rank(review: Review, seed: str, given: str, line: str) -> None:
    loader = f"data, held_out = Run({given}).divided()\n{LOADER}"
    found = review(ddp(head=SPLIT.replace("{seed}", seed), loader=loader))
    because = found["duplicate-data-across-ranks"].because
    assert f"(`{line}`) seeds each rank differently" in because
