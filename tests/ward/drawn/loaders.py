"""Loaders: each defines ``loader``, and in the slot ``epoch`` what it needs before each epoch."""

from tests.ward.drawn.part import Loader

MAP = """
class $Items(Dataset):
    def __len__(self):
        return $batch * world * $epoch

    def __getitem__(self, index):
        $sample = table[index % len(table)]
        [[item]]
        return $sample, index % 10


def collate(samples):
    [[collate]]
    return default_collate(samples)
"""
STREAM = """
class $Items(IterableDataset):
    def __iter__(self):
        for index in range(rank, $batch * world * $epoch, world):
            $sample = table[index % len(table)]
            [[item]]
            yield $sample, index % 10


def collate(samples):
    [[collate]]
    return default_collate(samples)
"""
SHARDS = """
def shards():
    for shard in range(rank, $epoch * world, world):
        [[shard]]
        yield [(shard * $batch + one) % len(table) for one in range($batch)]


class $Items:
    def __iter__(self):
        for indices in shards():
            samples = []
            for index in indices:
                $sample = table[index]
                [[item]]
                samples.append(($sample, index % 10))
            yield default_collate(samples)
"""
MEMORY = """
class $Items:
    def __iter__(self):
        generator = torch.Generator().manual_seed(rank)
        for _ in range($epoch):
            [[shard]]
            rows = torch.randint(len(table), ($batch,), generator=generator)
            yield table[rows], rows % 10
"""
PREFETCH = """
def produce(queue):
    generator = torch.Generator().manual_seed(rank)
    while True:
        rows = torch.randint(len(table), ($batch,), generator=generator)
        [[shard]]
        queue.put((table[rows], rows % 10))


class $Items:
    def __init__(self):
        self.queue = Queue(4)
        threading.Thread(target=produce, args=(self.queue,), daemon=True).start()

    def __iter__(self):
        for _ in range($epoch):
            yield self.queue.get()
"""
LOADER = "DataLoader(data, batch_size=$batch, collate_fn=collate, "
LOADERS = (
    Loader(
        name="map",
        slots={
            "dataset": MAP,
            "loader": "data = $Items()\n[[sampler]]\n"
            "loader = " + LOADER + "sampler=sampler, num_workers=0)",
            "epoch": "[[reshuffle]]",
        },
    ),
    Loader(
        name="map, workers",
        hidden=True,
        slots={
            "dataset": MAP,
            "loader": "data = $Items()\n[[sampler]]\n"
            "loader = "
            + LOADER
            + "sampler=sampler, num_workers=$workers, persistent_workers=[[persistent]])",
            "epoch": "[[reshuffle]]",
        },
        values={"workers": (1, 2)},
    ),
    Loader(
        name="iterable",
        slots={"dataset": STREAM, "loader": "data = $Items()\nloader = " + LOADER + ")"},
    ),
    Loader(name="shards", slots={"dataset": SHARDS, "loader": "loader = $Items()"}),
    Loader(name="memory", slots={"dataset": MEMORY, "loader": "loader = $Items()"}),
    Loader(
        name="prefetch",
        hidden=True,
        slots={
            "imports": "import threading\nfrom queue import Queue",
            "dataset": PREFETCH,
            "loader": "loader = $Items()",
        },
    ),
)
