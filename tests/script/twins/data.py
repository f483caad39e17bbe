"""Mistakes in what loads the data."""

from __future__ import annotations

from tests.script.sources import ACCELERATE, HEAD, LOADER, SET_UP, STEP, ddp

RANK = "rank, world = dist.get_rank(), dist.get_world_size()\n"
STREAM = """
from torch.utils.data import get_worker_info

class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from self.files[{first} :: {parts}]
"""
OF_STREAM = "loader = DataLoader(Stream(), num_workers=4, persistent_workers=True)"
BY_LIGHTNING = """
import lightning as L

class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Stream(), num_workers=4, persistent_workers=True)

L.Trainer(devices={devices}, strategy="ddp").fit(model, datamodule=Data())
"""
BY_WORKER = STREAM.format(first="info.id", parts="info.num_workers")
HUB = "from datasets import load_dataset\nfrom datasets.distributed import split_dataset_by_node\n"
STREAMED = 'data = load_dataset("parquet", data_files=files, streaming=True)\n'
OF_HUB = "loader = DataLoader(data, num_workers=4, persistent_workers=True)"
OF_LAMBDA = LOADER.replace("num_workers", "worker_init_fn=lambda worker: {}, num_workers")
TARS = "import webdataset as wds"
OF_TARS = (
    "loader = wds.WebDataset('rows-{{00..99}}.tar', shardshuffle=100{}).decode().to_tuple('jpg')"
)
SEEDED = """
import random
import numpy as np

def seed_worker(worker):
    np.random.seed({seed})
    random.seed({seed})
"""
OF_SEEDED = LOADER.replace("num_workers", "worker_init_fn=seed_worker, num_workers")
CHOSEN = LOADER.replace("DistributedSampler(", "Sampler(").replace(
    "sampler =", "Sampler = DistributedSampler if args.many else RandomSampler\nsampler =", 1
)
SPLITS = "from torch.utils.data import random_split"
OF_SPLIT = "data, held_out = random_split(data, [900, 100]{})\n" + LOADER
SKLEARN = "from sklearn.model_selection import train_test_split"
OF_SKLEARN = "data, held_out = train_test_split(data, {})\n" + LOADER
DRAWN = """
import numpy as np

class Drawn(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def _moved(self, item):
        return item + {}

    def __getitem__(self, index):
        return self._moved(self.images[index])
"""
OF_OBJECT = """
class Run:
    def __init__(self, rank):
        torch.manual_seed({})

    def divided(self):
        return random_split(Images(), [900, 100])
"""
WITHOUT = SET_UP.replace("data = Images()\n", "")
OF_DRAWN = f"data = Drawn()\n{LOADER}"
NOISY = STEP.replace("model(batch)", "model(batch + torch.randn_like(batch))")
STREAM_OF_RANK = """
class Stream(IterableDataset):
    def __init__(self):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        {}
"""
ENCODED = """
class Encoded(Dataset):
    def __init__(self, device):
        self.encoder = load().to(device)

    def __getitem__(self, index):
        return self.encoder(self.images[index])
"""
IN_A_DICTIONARY = OF_SEEDED.replace(
    "loader =", "options = dict(worker_init_fn=seed_worker, num_workers=4)\nloader ="
).replace("worker_init_fn=seed_worker, num_workers=4, persistent", "**options, persistent")
OF_OPTIONS = (
    "sampler = DistributedSampler(data)\noptions = dict(batch_size=8)\n{}\n"
    "loader = DataLoader(data, sampler=sampler, **options)\n"
)
SHARDS_MODEL = """
from torch.distributed.fsdp import fully_shard

def sharded(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)
"""
SHARDED_BY_HAND = SET_UP.replace("DDP(Net().to(local_rank))", "sharded(Net().to(local_rank))")
WHOLE_DATA = "loader = DataLoader(data, shuffle=True, num_workers=4, persistent_workers=True)\n"
RAY = """
import ray.train.torch
import torch
from torch.utils.data import DataLoader

def loop():
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, shuffle=True, num_workers=2))
    for epoch in range(10):
        {}
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
"""
PART = "files = sorted(glob.glob('*.parquet'))[dist.get_rank()::dist.get_world_size()]\n"
BUCKETS = """
import random
from torch.utils.data import Sampler

class Buckets(Sampler):
    def __init__(self, data, rank, world, shuffle=True):
        self.data, self.rank, self.world, self.shuffle, self.epoch = data, rank, world, shuffle, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(len(self.data)))
        if self.shuffle:
            random.Random(self.epoch).shuffle(order)
        return iter(order[self.rank :: self.world])
"""
OF_BUCKETS = """
buckets = Buckets(data, dist.get_rank(), dist.get_world_size(){more})
{name} = DataLoader(data, {keyword}=buckets, num_workers=4, persistent_workers=True)
"""
FIRST = "loader = DataLoader(data, sampler=DistributedSampler(data), num_workers=4)\n"


def buckets(
    each: str, keyword: str = "batch_sampler", more: str = "", name: str = "loader", first: str = ""
) -> str:
    made = OF_BUCKETS.format(more=more, keyword=keyword, name=name)
    return ddp(head=BUCKETS, loader=first + made, each_epoch=each)


SHARDED_ROWS = """
from torch.utils.data import get_worker_info

class ShardedRows(IterableDataset):
    def __init__(self, files, size):
        self.files, self.size = files, size

    def __iter__(self):
        info = get_worker_info()
        for path in self.files[info.id :: info.num_workers]:
            yield from torch.load(path)
"""
OF_SHARDED_ROWS = """
rows = ShardedRows(folder[0], 64)
loader = DataLoader(rows, batch_size=None, num_workers=4, persistent_workers=True)
"""
OF_FABRIC = """
from itertools import islice
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, IterableDataset

class Rows(IterableDataset):
    def __init__(self, files, at, ranks):
        self.files = sorted(files){part}

    def __iter__(self):
        for path in self.files:
            with open(path) as rows:
                yield from rows

fabric = Fabric(strategy="ddp")
fabric.launch()
model, optimizer = fabric.setup(net(), adam())
rows = Rows(paths(), fabric.global_rank, fabric.world_size)
loader = fabric.setup_dataloaders(DataLoader(rows, batch_size=8, num_workers=1))
for epoch in range(4):
    {loop}
        optimizer.zero_grad()
        fabric.backward(model(batch).sum())
        optimizer.step()
"""
TWINS = {
    "an own sampler of batches whose set_epoch is not reached": (
        "missing-set-epoch",
        buckets("loader.sampler.set_epoch(epoch)"),
        buckets("loader.batch_sampler.set_epoch(epoch)"),
        buckets("buckets.set_epoch(epoch)"),
        buckets("for one in (buckets,):\n    one.set_epoch(epoch)"),
        buckets("loader.sampler.set_epoch(epoch)", more=", shuffle=False"),
        buckets("loader.sampler.set_epoch(epoch)", keyword="sampler"),
        buckets("loader.sampler.set_epoch(epoch)", name="val_loader", first=FIRST),
        buckets("getattr(loader, 'batch_sampler').set_epoch(epoch)"),
    ),
    "an own sampler whose set_epoch nothing calls": (
        "missing-set-epoch",
        buckets("pass", keyword="sampler"),
        buckets("buckets.set_epoch(epoch)", keyword="sampler"),
        buckets("pass", keyword="sampler").replace("def set_epoch", "def advance"),
    ),
    "set_epoch once": (
        "missing-set-epoch",
        ddp(loader=f"{LOADER}sampler.set_epoch(0)\n", each_epoch=""),
        ddp(loader=f"{LOADER}sampler.set_epoch(0)\n"),
    ),
    "deepspeed and no set_epoch": (
        "missing-set-epoch",
        ddp(head="import deepspeed", each_epoch=""),
        ddp(head="import deepspeed"),
    ),
    "a stream that only workers share": (
        "iterable-dataset-not-sharded",
        ddp(
            head=STREAM.format(first="info.id", parts="info.num_workers"),
            loader=OF_STREAM,
            each_epoch="",
        ),
        ddp(
            head=STREAM.format(
                first="rank * info.num_workers + info.id", parts="world * info.num_workers"
            ),
            loader=OF_STREAM,
            each_epoch="",
        ),
    ),
    "a stream that Lightning does not share out": (
        "iterable-dataset-not-sharded",
        HEAD + BY_WORKER + BY_LIGHTNING.format(devices=4),
        HEAD
        + STREAM.format(first="rank() * info.num_workers + info.id", parts="parts()")
        + BY_LIGHTNING.format(devices=4),
        HEAD + BY_WORKER.replace("self.files[", "files_of(rank())[") + BY_LIGHTNING,
    ),
    "a stream of the hub": (
        "iterable-dataset-not-sharded",
        ddp(head=HUB, loader=STREAMED + OF_HUB, each_epoch=""),
        ddp(
            head=HUB,
            loader=f"{STREAMED}data = split_dataset_by_node(data, rank, world)\n{OF_HUB}",
            each_epoch="",
        ),
    ),
    "workers seeded alike": (
        "identical-rng-across-workers",
        ddp(head=SEEDED.format(seed=1234), loader=OF_SEEDED),
        ddp(head=SEEDED.format(seed="1234 + worker + dist.get_rank()"), loader=OF_SEEDED),
    ),
    "workers seeded alike by a lambda": (
        "identical-rng-across-workers",
        ddp(loader=OF_LAMBDA.format("np.random.seed(0)")),
        ddp(loader=OF_LAMBDA.format("np.random.seed(torch.initial_seed() % 2**32)")),
        ddp(loader=OF_LAMBDA.format("np.random.seed(own_seed(worker))")),
        ddp(loader=OF_LAMBDA.format("print(worker)")),
    ),
    "shards of WebDataset that nothing shares out": (
        "iterable-dataset-not-sharded",
        ddp(head=TARS, loader=OF_TARS.format(""), each_epoch=""),
        ddp(head=TARS, loader=OF_TARS.format(", nodesplitter=wds.split_by_node"), each_epoch=""),
        ddp(head=TARS, loader=OF_TARS.format(", resampled=True"), each_epoch=""),
        ddp(head=TARS, loader=OF_TARS.format(", **options"), each_epoch=""),
        ddp(
            head=TARS,
            loader=f"if dist.get_rank() == 0:\n    {OF_TARS.format('')}",
            each_epoch="",
        ),
    ),
    "noise by one seed for all ranks": (
        "identical-rng-across-workers",
        ddp(set_up=SET_UP + "torch.manual_seed(7)\n", step=NOISY),
        ddp(set_up=SET_UP + "torch.manual_seed(7 + dist.get_rank())\n", step=NOISY),
    ),
    "noise by a generator": (
        "identical-rng-across-workers",
        ddp(set_up=SET_UP + "torch.manual_seed(7)\n", step=NOISY),
        ddp(
            set_up=SET_UP + "torch.manual_seed(7)\n",
            step=NOISY.replace("randn_like(batch)", "randn(3, generator=own)"),
        ),
    ),
    "a stream for each rank, and for all of its workers": (
        "iterable-dataset-not-sharded",
        ddp(
            head=STREAM_OF_RANK.format("yield from self.files[self.rank :: self.ranks]"),
            loader=OF_STREAM,
            each_epoch="",
        ),
        ddp(
            head=STREAM_OF_RANK.format(
                "mine = self.files[self.rank :: self.ranks]\n        while True:\n"
                "            yield random.choice(mine)"
            ),
            loader=OF_STREAM,
            each_epoch="",
        ),
    ),
    "an encoder on the GPU in workers": (
        "dataloader-fork-unsafe",
        ddp(head=ENCODED, set_up=WITHOUT + 'data = Encoded("cuda")\n'),
        ddp(head=ENCODED, set_up=WITHOUT + 'data = Encoded("cpu")\n'),
        ddp(
            head=ENCODED,
            set_up=WITHOUT + 'data = Encoded("cuda")\n',
            loader=LOADER.replace(
                "num_workers=4", 'num_workers=4, multiprocessing_context="spawn"'
            ),
        ),
    ),
    "workers seeded by a constant, by options in a dictionary": (
        "identical-rng-across-workers",
        ddp(head=SEEDED.format(seed=1234), loader=IN_A_DICTIONARY),
        ddp(head=SEEDED.format(seed="1234 + worker + dist.get_rank()"), loader=IN_A_DICTIONARY),
        ddp(
            head=SEEDED.format(seed=1234),
            loader=IN_A_DICTIONARY.replace("worker_init_fn=seed_worker, ", ""),
        ),
    ),
    "no workers, by options in a dictionary": (
        "dataloader-bottleneck",
        ddp(loader=OF_OPTIONS.format("")),
        ddp(loader=OF_OPTIONS.format("options['num_workers'] = 4")),
        ddp(loader=OF_OPTIONS.format("options.update(on_gpu)")),
        ddp(loader=OF_OPTIONS.format("options |= on_gpu")),
    ),
    "no part for each rank, beside a function that shards the model": (
        "duplicate-data-across-ranks",
        ddp(head=SHARDS_MODEL, set_up=SHARDED_BY_HAND, loader=WHOLE_DATA, each_epoch=""),
        ddp(head=SHARDS_MODEL, set_up=SHARDED_BY_HAND),
        ddp(
            head=SHARDS_MODEL + "\ndef shard(data):\n    return data[own_part()]\n",
            set_up=SHARDED_BY_HAND,
            loader=WHOLE_DATA.replace("(data,", "(shard(data),"),
            each_epoch="",
        ),
    ),
    "files of a worker, in a stream with a telling name": (
        "iterable-dataset-not-sharded",
        ddp(head=SHARDED_ROWS, loader=OF_SHARDED_ROWS, each_epoch=""),
        ddp(
            head=SHARDED_ROWS.replace("self.files[info.id", "self.files[dist.get_rank()][info.id"),
            loader=OF_SHARDED_ROWS,
            each_epoch="",
        ),
        ddp(
            head=SHARDED_ROWS,
            loader="me = dist.get_rank()\n"
            + OF_SHARDED_ROWS.replace("folder[0]", "folder[0][me::count]"),
            each_epoch="",
        ),
    ),
    "a loader that Ray prepares": (
        "missing-set-epoch",
        RAY.format("pass"),
        RAY.format("loader.sampler.set_epoch(epoch)"),
    ),
    "files of a rank, without a loader": (
        "uneven-inputs-per-rank",
        ddp(loader=PART + "loader = rows(files)\n", each_epoch=""),
        ddp(loader=PART + "loader = rows(files)\n", each_epoch="").replace(
            "for batch in loader", "for step, batch in zip(range(1000), loader)"
        ),
    ),
    "workers of all ranks with equal seeds": (
        "identical-rng-across-workers",
        ddp(head="BASE = 42\n" + SEEDED.format(seed="BASE + worker"), loader=OF_SEEDED),
        ddp(head=SEEDED.format(seed="torch.initial_seed() % 2**32"), loader=OF_SEEDED),
    ),
    "workers seeded by an option": (
        "identical-rng-across-workers",
        ddp(head=SEEDED.format(seed="args.seed + worker"), loader=OF_SEEDED),
        ddp(
            head=SEEDED.format(seed="args.seed + worker"),
            loader="args.seed += dist.get_rank()\n" + OF_SEEDED,
        ),
    ),
    "a sampler class that the script chooses": (
        "missing-set-epoch",
        ddp(loader=CHOSEN, each_epoch=""),
        ddp(loader=CHOSEN),
    ),
    "parts of different sizes": (
        "uneven-inputs-per-rank",
        ddp(
            set_up=f"{SET_UP}{RANK}data = load(files[rank::world])\n",
            loader="loader = DataLoader(data, num_workers=4, persistent_workers=True)",
            each_epoch="",
        ),
        ddp(
            set_up=f"{SET_UP}{RANK}data = load(files[rank:len(files) // world * world:world])\n",
            loader="loader = DataLoader(data, num_workers=4, persistent_workers=True)",
            each_epoch="",
        ),
        ddp(
            set_up=f"{SET_UP}{RANK}order = files[: len(files) - len(files) % world]\n"
            "data = load(order[rank::world])\n",
            loader="loader = DataLoader(data, num_workers=4, persistent_workers=True)",
            each_epoch="",
        ),
    ),
    "files of any length for each rank, in Fabric": (
        "uneven-inputs-per-rank",
        OF_FABRIC.format(part="[at::ranks]", loop="for batch in loader:"),
        OF_FABRIC.format(part="", loop="for batch in loader:"),
        OF_FABRIC.format(part="[at::ranks]", loop="for batch in islice(loader, 500):"),
    ),
    "a split that each rank draws": (
        "duplicate-data-across-ranks",
        ddp(head=SPLITS, loader=OF_SPLIT.format("")),
        ddp(head=SPLITS, loader=OF_SPLIT.format(", torch.Generator().manual_seed(7)")),
    ),
    "a split with seeds of the ranks": (
        "duplicate-data-across-ranks",
        ddp(head=SPLITS, loader=f"torch.manual_seed(dist.get_rank())\n{OF_SPLIT.format('')}"),
        ddp(head=SPLITS, loader=f"torch.manual_seed(args.seed)\n{OF_SPLIT.format('')}"),
    ),
    "a split by an object that seeds by the rank": (
        "duplicate-data-across-ranks",
        *(
            ddp(
                head=SPLITS + OF_OBJECT.format(seed),
                loader=f"data, held_out = Run(dist.get_rank()).divided()\n{LOADER}",
            )
            for seed in ("7 + rank", "7")
        ),
    ),
    "a split by the seed of a rank": (
        "duplicate-data-across-ranks",
        ddp(head=SKLEARN, loader=OF_SKLEARN.format("random_state=dist.get_rank()")),
        ddp(head=SKLEARN, loader=OF_SKLEARN.format("random_state=args.seed")),
    ),
    "words that are numbered in the order of a set": (
        "dataset-differs-across-ranks",
        ddp(loader=f"words = read()\nids = {{w: i for i, w in enumerate(set(words))}}\n{LOADER}"),
        ddp(loader=f"ids = {{w: i for i, w in enumerate(sorted(set(words)))}}\n{LOADER}"),
        ddp(loader=f"ids = {{w: i for i, w in enumerate(dict.fromkeys(words))}}\n{LOADER}"),
        ddp(
            loader="chars = list(set(text))\nchars.sort()\n"
            f"ids = {{c: i for i, c in enumerate(chars)}}\n{LOADER}"
        ),
        # Numbers have the same order everywhere, and nothing keeps these.
        ddp(loader=f"ids = {{y: i for i, y in enumerate(set(targets))}}\n{LOADER}"),
        ddp(loader=f"for i, w in enumerate(set(words)):\n    print(i, w)\n{LOADER}"),
        ddp(
            loader="ids = [{w: i for i, w in enumerate(set(words))}]\n"
            f"dist.broadcast_object_list(ids)\n{LOADER}"
        ),
    ),
    "classes by their place in a list of a set": (
        "dataset-differs-across-ranks",
        ddp(
            loader="names = list({path.parent.name for path in files})\n"
            f"labels = [names.index(path.parent.name) for path in files]\n{LOADER}"
        ),
        ddp(
            loader="names = sorted({path.parent.name for path in files})\n"
            f"labels = [names.index(path.parent.name) for path in files]\n{LOADER}"
        ),
        ddp(loader=f"counts = list({{3, 5}})\nat = [counts.index(n) for n in sizes]\n{LOADER}"),
    ),
    "a vocabulary of an object, behind its special words": (
        "dataset-differs-across-ranks",
        *(
            ddp(
                head="class Dictionary:\n    def __init__(self, rows):\n"
                "        kept = {one for one, n in Counter(rows).items() if n > 3}\n"
                f"        self.idx2word = {known}\n"
                "        self.word2idx = {one: i for i, one in enumerate(self.idx2word)}\n",
                loader=f"known = Dictionary(rows)\n{LOADER}",
            )
            for known in (
                "['<unk>'] + list(kept)",
                "['<unk>'] + sorted(kept)",
                "['<unk>', *sorted(kept)]",
            )
        ),
    ),
    "a vocabulary that grows in a loop over a set": (
        "dataset-differs-across-ranks",
        ddp(
            loader="ids = {'<pad>': 0}\nfor word in set(words):\n    ids[word] = len(ids)\n"
            f"{LOADER}"
        ),
        ddp(
            loader="ids = {'<pad>': 0}\nfor word in sorted(set(words)):\n"
            f"    ids[word] = len(ids)\n{LOADER}"
        ),
        ddp(
            loader="lengths = {}\nfor word in set(words):\n    lengths[word] = len(word)\n"
            f"{LOADER}"
        ),
    ),
    "a vocabulary in a loop over a set": (
        "dataset-differs-across-ranks",
        ddp(
            loader="seen = set(text.split())\nids = {}\n"
            f"for i, one in enumerate(seen):\n    ids[one] = i\n{LOADER}"
        ),
        ddp(
            loader="seen = sorted(set(text.split()))\nids = {}\n"
            f"for i, one in enumerate(seen):\n    ids[one] = i\n{LOADER}"
        ),
        ddp(
            loader="seen = set(text.split())\nids = {}\n"
            f"for i, one in enumerate(sorted(seen)):\n    ids[one] = i\n{LOADER}"
        ),
    ),
    "a split by scikit-learn without a seed": (
        "duplicate-data-across-ranks",
        ddp(head=SKLEARN, loader=OF_SKLEARN.format("test_size=0.1")),
        ddp(head=SKLEARN, loader=f"seed_everything(7)\n{OF_SKLEARN.format('test_size=0.1')}"),
        ddp(head=SKLEARN, loader=OF_SKLEARN.format("test_size=0.1, shuffle=False")),
    ),
    "a sampler by the number of the host": (
        "duplicate-data-across-ranks",
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, world_size, node_rank)")),
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, world_size, rank)")),
    ),
    "a loader that accelerate does not know": (
        "duplicate-data-across-ranks",
        ACCELERATE.replace(
            "model, optimizer, loader = accelerator.prepare(net(), adam(), loader)",
            "model, optimizer = accelerator.prepare(net(), adam())",
        ),
        ACCELERATE,
    ),
    "a sampler for one rank": (
        "duplicate-data-across-ranks",
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, num_replicas=1, rank=0)")),
        ddp(loader=LOADER.replace("Sampler(data)", "Sampler(data, num_replicas=world, rank=rank)")),
    ),
    "a generator that a helper uses": (
        "identical-rng-across-workers",
        ddp(head=DRAWN.format("self.rng.normal()"), set_up=WITHOUT, loader=OF_DRAWN),
        ddp(head=DRAWN.format("np.random.normal()"), set_up=WITHOUT, loader=OF_DRAWN),
    ),
    "set_epoch by its name": (
        "missing-set-epoch",
        ddp(each_epoch=""),
        ddp(each_epoch='getattr(sampler, "set_epoch")(epoch)'),
    ),
    "a set_epoch whose number stands still": (
        "missing-set-epoch",
        ddp(set_up=SET_UP + "state = State()\n", each_epoch="sampler.set_epoch(state.epoch)"),
        ddp(
            set_up=SET_UP + "state = State()\n",
            each_epoch="sampler.set_epoch(state.epoch)\nstate.epoch += 1",
        ),
    ),
    "a loader that shuffles on all ranks, with more options": (
        "duplicate-data-across-ranks",
        ddp(loader="loader = DataLoader(data, shuffle=True, **options)\n", each_epoch=""),
        ddp(loader="loader = DataLoader(data, **options)\n", each_epoch=""),
    ),
    "a part of the data for each rank": (
        "duplicate-data-across-ranks",
        ddp(loader="loader = DataLoader(data, shuffle=True, num_workers=4)\n", each_epoch=""),
        ddp(
            loader="loader = DataLoader(Subset(data, range(dist.get_rank(), 99, 8)), shuffle=True,"
            " num_workers=4, persistent_workers=True)\n",
            each_epoch="",
        ),
    ),
    "a copy from memory that is not pinned": (
        "collate-bottleneck",
        ddp(step="batch = batch.to(local_rank, non_blocking=True)\n" + STEP),
        ddp(
            loader=LOADER.replace("num_workers", "pin_memory=True, num_workers"),
            step="batch = batch.to(local_rank, non_blocking=True)\n" + STEP,
        ),
    ),
    "a copy from memory that cuda() is to get ahead of": (
        "collate-bottleneck",
        ddp(step="batch = batch.cuda(non_blocking=True)\n" + STEP),
        ddp(step="batch = batch.pin_memory().cuda(non_blocking=True)\n" + STEP),
    ),
    "a copy that waits as it should": (
        "collate-bottleneck",
        ddp(
            loader=LOADER.replace("num_workers", "pin_memory=False, num_workers"),
            step="batch = batch.cuda(non_blocking=True)\n" + STEP,
        ),
        ddp(step="batch = batch.cuda()\n" + STEP),
    ),
}
