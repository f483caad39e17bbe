"""Mistakes in what each rank reads and draws, behind helpers, classes and attributes."""

from __future__ import annotations

from tests.script.sources import SET_UP, STEP, ddp

OF_STREAM = (
    "loader = DataLoader({}, batch_size=4, num_workers=4, persistent_workers=True)\n"
    "sampler = loader\n"
)
MIXED = """
import random

class Recipes(IterableDataset):
    def __init__(self, shards, seed, rank=0):
        self.shards, self.seed, self.rank = shards, seed, rank

    def _mixed(self):
        {generator}
        order = sorted(self.shards)
        {draw}
        return order

    def __iter__(self):
        if self.rank == 0:
            print("a new pass")
        for shard in self._mixed():
            yield from load(shard)
"""
OF_RECIPES = OF_STREAM.format("Recipes(names, seed=args.seed)")
BUFFERED = """
import numpy as np

def stirred(items, size, seed):
    rng = np.random.default_rng(seed)
    kept = []
    for item in items:
        kept.append(item)
        if len(kept) == size:
            yield kept.pop(rng.integers(size))

def mine(items):
    {mine}

class Poems(IterableDataset):
    def __init__(self, config):
        self.config, self.epoch = config, 0

    def lines(self):
        with open(self.config.path) as file:
            yield from file

    def __iter__(self):
        yield from stirred(mine(self.lines()), 512, self.config.seed + self.epoch)
"""
OF_POEMS = OF_STREAM.format("Poems(config)")
SHARED_OUT = "info = torch.utils.data.get_worker_info(); return skip(items, rank, info.id)"
PICKS = """
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler, Sampler

def make(data, training, distributed=True):
    if {test}:
        picks = {sampler}
    else:
        picks = DistributedSampler(data)
    return DataLoader(data, sampler=picks, num_workers=4, persistent_workers=True, batch_size=8)
"""
OF_PICKS = "loader = make(data, training=True)\nsampler = loader.sampler\n"
ORDERED = """
class ByLength(torch.utils.data.Sampler):
    def __init__(self, lengths{argument}):
        self.lengths = lengths{kept}

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=self.lengths.__getitem__)
        yield from order{part}
"""
BY_LENGTH = (
    "class Run:\n"
    "    def __init__(self, data):\n"
    "        self.picks = ByLength(data.lengths)\n"
    "        self.loader = DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(\n"
    "            self.picks, 8, True), num_workers=4, persistent_workers=True)\n\n"
    "run = Run(data)\nloader, sampler = run.loader, run.picks\n"
)
WEIGHTED = (
    "from torch.utils.data import WeightedRandomSampler\n"
    "sampler = WeightedRandomSampler(weights, len(data))\n"
    "loader = DataLoader(data, 8, sampler=sampler, num_workers=4, persistent_workers=True)\n"
)
SEEDED_ALIKE = SET_UP + "torch.manual_seed(args.seed)\n"
DEALT = """
class Logs(IterableDataset):
    def __init__(self, files, rank, ranks):
        self.files, self.rank, self.ranks = files, rank, ranks

    def own(self):
        info = torch.utils.data.get_worker_info()
        return self.files[self.rank * info.num_workers + info.id :: self.ranks * info.num_workers]

    def __iter__(self):
        for path in self.own():
            with open(path) as lines:
                for line in lines:
                    yield line
"""
OF_LOGS = OF_STREAM.format("Logs(files, dist.get_rank(), dist.get_world_size())")
HANDED = """
class Rows(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for number, path in enumerate(self.paths):
            table = read(path)
            for row in table.rows() if number % info.num_workers == info.id else ():
                yield row
"""
OF_ROWS = (
    "paths = sorted(glob.glob('*.csv'))\n"
    "own = paths[dist.get_rank() :: dist.get_world_size()]\n" + OF_STREAM.format("Rows(own)")
)
PLAYED = """
class Plays(IterableDataset):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        for row in {}:
            yield row
"""
OF_PLAYS = OF_STREAM.format("Plays(source)")
AGREED = "more = torch.ones(1)\ndist.all_reduce(more, dist.ReduceOp.MIN)\n" + STEP
SLICED = """
from itertools import islice

class Texts(IterableDataset):
    def __init__(self, files):
        self.files = files
        self.at, self.of = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        for file in {own}:
            rows = open(file)
            yield from rows
"""
SKIPPED = """
class Texts(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for number, file in enumerate(self.files):
            {file}
            for at, row in enumerate(open(file)):
                {row}
"""
OWN = {"loader": "loader = DataLoader(Texts(names), batch_size=8)\nsampler = loader\n"}
EXTENDED = """
class Lines(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        for path in {part}:
            yield from self.read(path)

class Words(Lines):
    def read(self, path):
        return open(path).read().split()

def build(paths):
    if not paths:
        raise SystemExit("no files")
    return Words(paths)

def ready(stream, size):
    return DataLoader(stream, size, num_workers=0)
"""
OF_HELPER = "loader = ready(build(args.paths), 8)\nsampler = loader\n"
OPTIONS = (
    "from torch.utils.data import RandomSampler\nsampler = {}\n"
    "options = dict(sampler=sampler, num_workers=4, persistent_workers=True)\n"
    "loader = DataLoader(data, 8, **options)\n"
)
IN_PLACE = STEP.replace("batch).sum", "batch + torch.empty_like(batch).normal_(0, 0.1)).sum")
LOGS = """
import logging
rank = dist.get_rank()
logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR)
writer = Writer(args.folder, quiet=rank != 0)
"""
ALONE = "loader = DataLoader(data, 8, shuffle=True, num_workers=4, persistent_workers=True)\n"
CHUNKS = """
import random

def chunked(names, size):
    chunks = [names[at : at + size] for at in range(0, len(names), size)]
    {draw}
    for chunk in {part}:
        yield load(chunk)
"""
PAGES = """
import numpy as np

class Pages:
    def __init__(self, folder, seed):
        self.folder, self.seed = folder, seed

    def __iter__(self):
        drawn = np.random.default_rng({seed})
        pages = sorted(self.folder.iterdir())
        while True:
            yield load(pages[drawn.integers(len(pages))])
"""


def over(head: str, batches: str) -> str:
    """A training on batches that no DataLoader makes."""
    source = ddp(head=head, loader="", each_epoch="")
    return source.replace("for batch in loader", f"for batch in {batches}")


NOISES = """
class Diffusion:
    def __init__(self, net, steps):
        self.net, self.steps = net, steps

    def loss(self, x):
        t = torch.randint(self.steps, (len(x),), device=x.device)
        return self.net(x, t, torch.randn_like(x)).sum()

def fix_seed(number):
    torch.manual_seed(number)
"""
NOISED = STEP.replace("model(batch).sum()", "diffusion.loss(batch)")
OF_NOISES = SET_UP + "fix_seed({})\ndiffusion = Diffusion(model, 1000)\n"
MASKS = """
class Masked(torch.nn.Module):
    def forward(self, x):
        keep = self.chosen(x)
        return self.decoder(self.encoder(x * keep))

    def chosen(self, x):
        return torch.rand(x.shape[:2], device=x.device) > 0.75
"""
OF_MASKS = SET_UP.replace("Net()", "Masked()") + "torch.manual_seed({})\n"
GENERATED = STEP.replace("batch).sum", "batch + torch.randn(8, generator=source)).sum")
OF_SOURCE = SET_UP + "source = torch.Generator('cuda').manual_seed({})\n"
TWINS = {
    "a stream in the order of one seed": (
        "iterable-dataset-not-sharded",
        ddp(
            head=MIXED.format(
                generator="rng = random.Random(self.seed)", draw="rng.shuffle(order)"
            ),
            loader=OF_RECIPES,
        ),
        # torch seeds the global generator in each worker, and ranks may differ.
        ddp(
            head=MIXED.format(generator="pass", draw="random.shuffle(order)"),
            loader=OF_RECIPES,
        ),
        ddp(
            head=MIXED.format(
                generator="rng = random.Random(self.seed + dist.get_rank())",
                draw="rng.shuffle(order)",
            ),
            loader=OF_RECIPES,
        ),
        ddp(
            head=MIXED.format(
                generator="rng = random.Random(self.seed)",
                draw="rng.shuffle(order)\n        order = part(order, self.rank, worker())",
            ),
            loader=OF_RECIPES,
        ),
    ),
    "a stream that a helper stirs by one seed": (
        "iterable-dataset-not-sharded",
        ddp(head=BUFFERED.format(mine="return filter(None, items)"), loader=OF_POEMS),
        ddp(head=BUFFERED.format(mine=SHARED_OUT), loader=OF_POEMS),
        ddp(
            head=BUFFERED.format(mine="return items"),
            loader="config.seed += dist.get_rank()\n" + OF_POEMS,
        ),
        ddp(head=BUFFERED.format(mine="return items").replace("(seed)", "()"), loader=OF_POEMS),
    ),
    "a random sampler for the training": (
        "duplicate-data-across-ranks",
        ddp(head=PICKS.format(test="training", sampler="RandomSampler(data)"), loader=OF_PICKS),
        ddp(
            head=PICKS.format(test="not distributed", sampler="RandomSampler(data)"),
            loader=OF_PICKS,
        ),
        ddp(
            head=PICKS.format(test="not training", sampler="RandomSampler(data)"),
            loader=OF_PICKS,
        ),
        ddp(head=PICKS.format(test="args.plain", sampler="RandomSampler(data)"), loader=OF_PICKS),
        ddp(
            head=PICKS.format(test="training", sampler="RandomSampler(shard(data, rank))"),
            loader=OF_PICKS,
        ),
    ),
    "an own sampler that knows no rank": (
        "duplicate-data-across-ranks",
        ddp(head=ORDERED.format(argument="", kept="", part=""), loader=BY_LENGTH),
        ddp(
            head=ORDERED.format(
                argument=", rank=None",
                kept="\n        self.rank = dist.get_rank()",
                part="[self.rank :: dist.get_world_size()]",
            ),
            loader=BY_LENGTH,
        ),
        ddp(
            head=ORDERED.format(argument="", kept="", part=""),
            loader=BY_LENGTH.replace("data.lengths", "data.lengths, rank=dist.get_rank()"),
        ),
    ),
    "a weighted sampler by one seed": (
        "duplicate-data-across-ranks",
        ddp(set_up=SEEDED_ALIKE, loader=WEIGHTED, each_epoch=""),
        ddp(
            set_up=SET_UP + "torch.manual_seed(args.seed + dist.get_rank())\n",
            loader=WEIGHTED,
            each_epoch="",
        ),
        # Without a seed, each rank draws other samples.
        ddp(loader=WEIGHTED, each_epoch=""),
    ),
    "a stream of rows that the file or an environment gives": (
        "iterable-dataset-not-sharded",
        ddp(head=PLAYED.format("open(self.source)"), loader=OF_PLAYS),
        ddp(head=PLAYED.format("self.source()"), loader=OF_PLAYS),
        ddp(head=PLAYED.format("self.source.sample(200)"), loader=OF_PLAYS),
        ddp(
            head=PLAYED.format("open(self.source)"),
            loader="source = load_dataset('text', streaming=True).shuffle(3 + dist.get_rank())\n"
            "plays = Plays(source)\n" + OF_STREAM.format("plays"),
        ),
    ),
    "files of any length for each rank": (
        "uneven-inputs-per-rank",
        ddp(head=DEALT, loader=OF_LOGS),
        ddp(head=DEALT, loader=OF_LOGS, step=AGREED),
        ddp(head=DEALT, loader=OF_LOGS, step=STEP + "if steps > most:\n    break\n"),
        ddp(
            head=DEALT,
            loader=OF_LOGS,
            step=f"with model.join():\n    {STEP.splitlines()[0]}\n{STEP}",
        ),
        ddp(
            head=DEALT.replace(
                "for path in self.own", "while True:\n          for path in self.own"
            ).replace(
                "            with open(path) as lines:\n                for line in lines:\n"
                "                    yield line",
                "            yield from open(path)",
            ),
            loader=OF_LOGS,
        ),
    ),
    "files that a stream gets for its rank": (
        "uneven-inputs-per-rank",
        ddp(head=HANDED, loader=OF_ROWS),
        ddp(
            head=HANDED,
            loader=OF_ROWS.replace("paths[dist", "paths[: len(paths) // 8 * 8][dist"),
        ),
        ddp(head=HANDED.replace("table.rows()", "table.rows()[: self.limit]"), loader=OF_ROWS),
        ddp(head=HANDED, loader=OF_ROWS).replace(
            "for batch in loader", "for batch in itertools.islice(loader, 500)"
        ),
    ),
    "files that islice deals": (
        "uneven-inputs-per-rank",
        ddp(head=SLICED.format(own="islice(sorted(self.files), self.at, None, self.of)"), **OWN),
        ddp(head=SLICED.format(own="islice(sorted(self.files), self.at, 100, self.of)"), **OWN),
        ddp(head=SLICED.format(own="part(sorted(self.files), self.at, self.of)"), **OWN),
        ddp(
            head=SLICED.format(own="islice(sorted(self.files), self.at, None, self.of)").replace(
                "yield from rows", "yield from padded(rows, self.rows)"
            ),
            **OWN,
        ),
    ),
    "files that a test of the rank skips": (
        "uneven-inputs-per-rank",
        ddp(
            head=SKIPPED.format(file="if number % ranks != rank: continue", row="yield row"), **OWN
        ),
        # Rows differ by one at most, which a note says of lists.
        ddp(head=SKIPPED.format(file="pass", row="if at % ranks == rank: yield row"), **OWN),
        ddp(
            head=SKIPPED.format(file="if number % ranks != rank: continue", row="yield row"),
            loader=OWN["loader"],
            step=AGREED,
        ),
    ),
    "a stream that extends another, made in a helper": (
        "iterable-dataset-not-sharded",
        ddp(head=EXTENDED.format(part="self.paths"), loader=OF_HELPER),
        ddp(head=EXTENDED.format(part="split(self.paths, dist.get_rank())"), loader=OF_HELPER),
        ddp(head=EXTENDED.format(part="split(self.paths, os.environ['RANK'])"), loader=OF_HELPER),
        ddp(
            head="first = dist.get_rank()\n" + EXTENDED.format(part="split(self.paths, first)"),
            loader=OF_HELPER,
        ),
        ddp(
            head=EXTENDED.format(part="self.mine()").replace(
                "    def read",
                "    def mine(self):\n        yield from part(self.paths, dist.get_rank())\n\n"
                "    def read",
            ),
            loader=OF_HELPER,
        ),
    ),
    "a sampler in a dictionary of options": (
        "duplicate-data-across-ranks",
        ddp(loader=OPTIONS.format("RandomSampler(data)")),
        ddp(loader=OPTIONS.format("DistributedSampler(data)")),
        ddp(
            loader=OPTIONS.format("RandomSampler(data) if world == 1 else DistributedSampler(data)")
        ),
    ),
    "a rank that only logs": (
        "duplicate-data-across-ranks",
        ddp(set_up=SET_UP + LOGS, loader=ALONE, each_epoch=""),
        ddp(set_up=SET_UP + LOGS + "data = part(data, rank)\n", loader=ALONE, each_epoch=""),
        ddp(set_up=SET_UP + LOGS),
    ),
    "batches of an own generator": (
        "duplicate-data-across-ranks",
        over(CHUNKS.format(draw="chunks.sort()", part="chunks"), "chunked(names, 8)"),
        over(CHUNKS.format(draw="random.shuffle(chunks)", part="chunks"), "chunked(names, 8)"),
        over(CHUNKS.format(draw="chunks.sort()", part="chunks[rank::world]"), "chunked(names, 8)"),
        over(CHUNKS.format(draw="chunks.sort()", part="chunks"), "chunked(names_of(rank), 8)"),
        over(CHUNKS.format(draw="chunks.sort()", part="chunks"), "other_batches(names)"),
    ),
    "batches of an own iterator with one seed": (
        "duplicate-data-across-ranks",
        over(PAGES.format(seed="self.seed"), "zip(range(100), Pages(args.folder, 3))"),
        over(PAGES.format(seed="self.seed"), "Pages(args.folder, 3 + dist.get_rank())"),
        over(PAGES.format(seed="self.seed + dist.get_rank()"), "Pages(args.folder, 3)"),
        over(PAGES.format(seed=""), "Pages(args.folder, 3)"),
    ),
    "noise in place by one seed": (
        "identical-rng-across-workers",
        ddp(set_up=SET_UP + "torch.manual_seed(5)\n", step=IN_PLACE),
        ddp(set_up=SET_UP + "torch.manual_seed(5 + int(os.environ['RANK']))\n", step=IN_PLACE),
        ddp(set_up=SET_UP + "torch.manual_seed(time.time_ns())\n", step=IN_PLACE),
        ddp(set_up=SET_UP + "if args.check: torch.manual_seed(5)\n", step=IN_PLACE),
    ),
    "noise of a method by the seed of a helper": (
        "identical-rng-across-workers",
        ddp(head=NOISES, set_up=OF_NOISES.format("args.seed"), step=NOISED),
        ddp(head=NOISES, set_up=OF_NOISES.format("args.seed + dist.get_rank()"), step=NOISED),
        ddp(
            head=NOISES.replace("(number)", "(number + dist.get_rank())", 2).replace(
                "def fix_seed(number + dist.get_rank())", "def fix_seed(number)"
            ),
            set_up=OF_NOISES.format("args.seed"),
            step=NOISED,
        ),
        ddp(
            head=NOISES,
            set_up=OF_NOISES.format("args.seed"),
            step=NOISED.replace("loss =", "with torch.no_grad(): loss ="),
        ),
    ),
    "a mask of the forward pass": (
        "identical-rng-across-workers",
        ddp(head=MASKS, set_up=OF_MASKS.format("config['seed']")),
        ddp(head=MASKS, set_up=OF_MASKS.format("config['seed'] * 100 + rank")),
        ddp(head=MASKS.replace("Masked", "DropMask"), set_up=OF_MASKS.format("7")),
    ),
    "noise of a generator with one seed": (
        "identical-rng-across-workers",
        ddp(set_up=OF_SOURCE.format("args.seed"), step=GENERATED),
        ddp(set_up=OF_SOURCE.format("args.seed + local_rank"), step=GENERATED),
        ddp(set_up=OF_SOURCE.format("new_seed()"), step=GENERATED),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
