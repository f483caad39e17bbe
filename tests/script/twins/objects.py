"""Mistakes behind objects, methods and functions of a script, in the helpers that people write."""

from __future__ import annotations

from tests.script.sources import HEAD, LOADER, SET_UP, ddp

CLUSTER = """
class Cluster:
    def __init__(self, size):
        self.size = size

    def {}(self, value):
        {}
        dist.all_reduce(value)
        return value / self.size

class Journal:
    def __init__(self, path, cluster):
        self.path, self.peers = path, cluster

    def score(self, value):
        return self.peers.average(value).item()

    def append(self, value):
        with open(self.path, "a") as file:
            file.write(f"{{self.score(value)}}")

    def note(self, value):
        with open(self.path, "a") as file:
            file.write(f"{{value}}")
"""
KEPT = (
    "cluster = Cluster(dist.get_world_size())\njournal = Journal('rows.txt', cluster)\n"
    "leads = dist.get_rank() == 0\n"
)
METERS = """
class Meter:
    def __init__(self):
        self.sum = torch.zeros(1).cuda()

    def add(self, value):
        self.sum += value

class Shared(Meter):
    def total(self):
        if dist.is_initialized():
            dist.reduce(self.sum, 0)
        return self.sum

class Local(Meter):
    def total(self):
        return self.sum

def meter():
    {}
    return {}()
"""
METERED = "gauge = meter()\n"
SESSION = """
class Session:
    def __enter__(self):
        return self

    def __exit__(self, *problem):
        pass

    def {}(self, value):
        dist.all_reduce(value)
        return value

def opened():
    return Session(), dist.get_rank()

"""
BUNDLE = """
from dataclasses import dataclass

class Comm:
    def gather(self, rows):
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, rows)
        return every

@dataclass
class Context:
    comm: Comm
    rank: int

class Quiet(Comm):
    def gather(self, rows):
        return [rows]

def publish(context, rows):
    return context.comm.{}(rows)

context = Context({}(), dist.get_rank())
"""
FITS_BY = """
class Plateau:
    def __init__(self, limit):
        self.limit, self.rounds, self.lowest = limit, 0, float("inf")

    def __call__(self, score):
        self.rounds = 0 if score < self.lowest else self.rounds + 1
        self.lowest = min(score, self.lowest)

    @property
    def exhausted(self):
        return self.rounds >= self.limit

class PatienceOf(Plateau):
    pass

@torch.no_grad()
def held_out(model, batches):
    sums = torch.zeros(2).cuda()
    for rows, labels in batches:
        sums[0] += model(rows.cuda()).sub(labels.cuda()).abs().sum()
        sums[1] += len(rows)
    {}
    return (sums[0] / sums[1]).item()

def fit(model, loader, val_loader, optimizer):
    guard = PatienceOf(3)
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            loss = model(batch).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 500 == 499:
                guard({})
                if {}:
                    return
"""
FITS = "fit(model, loader, val_loader, optimizer)"
EVALUATED = LOADER + (
    "val_loader = DataLoader(Images(), sampler=DistributedSampler(Images()), num_workers=4)\n"
)
SETS_A_FLAG = """
class Loop:
    def __init__(self, model, rows, held_out):
        self.model, self.rows, self.held_out = model, rows, held_out
        self.best, self.worse, self.stopped = 1e9, 0, False

    def score(self):
        self.model.eval()
        total = 0.0
        for batch in self.held_out:
            total += self.model(batch).mean().item()
        return {}

    def check(self, score):
        self.worse = 0 if score < self.best else self.worse + 1
        self.best = min(score, self.best)
        self.stopped = {}

    def run(self):
        epoch = 0
        while not self.stopped:
            sampler.set_epoch(epoch)
            for batch in self.rows:
                optimizer.zero_grad()
                self.model(batch).sum().backward()
                optimizer.step()
            epoch += 1
            self.check(self.score())

def average(value):
    value = torch.tensor(value).cuda()
    dist.all_reduce(value, dist.ReduceOp.AVG)
    return value.item()

Loop(model, loader, val_loader).run()
"""
ANY_RANK = """
def any_rank(value):
    value = torch.tensor(float(value)).cuda()
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()
"""
INLINE = """
total, batches = 0.0, 0
with torch.no_grad():
    for rows in val_loader:
        total += model(rows).mean().item()
        batches += 1
score = total / batches
{}
if score > lowest:
    worse += 1
    if {}:
        break
lowest = min(lowest, score)
"""
WARM = """
def weights(path, **options):
    return {{"net": torch.load(path{})["ema"]}}

def start(model, path):
    found = weights(path)
    fitting = {{name: value for name, value in found["net"].items() if name in wanted}}
    {}(fitting)
"""
STORE = """
class Store:
    def __init__(self, folder):
        self.folder, self.last = folder, None

    def read(self, name):
        self.last = torch.load(self.folder / name{})

    def restore(self, model, optimizer):
        model.load_state_dict(self.last["model"])
        {}

    def write(self, model):
        if dist.get_rank() == 0:
            state = model.state_dict()
            torch.save(state, self.folder / "last.pt")

store = Store(folder)
store.read("last.pt")
"""
NESTED = "model.module.load_state_dict(torch.load(path{}))\n"
ON_CPU = """
def written(model, path):
    state = {key: value.cpu() for key, value in model.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save(state, path)
"""


def _rounds(source: str) -> str:
    """A script whose loop is in a function or a class."""
    ends = FITS if "def fit" in source else ""
    return "\n".join((HEAD, SET_UP, EVALUATED, source, ends, "dist.destroy_process_group()"))


TWINS = {
    "a collective behind two objects": (
        "rank0-only-collective",
        ddp(
            head=CLUSTER.format("average", "value = value.clone()"),
            loader=LOADER + KEPT,
            epoch="if leads:\n    journal.append(loss)",
        ),
        ddp(
            head=CLUSTER.format("average", "value = value.clone()"),
            loader=LOADER + KEPT,
            epoch="score = journal.score(loss)\nif leads:\n    journal.note(score)",
        ),
        ddp(
            head=CLUSTER.format("average", "if self.size == self.size:\n            return value"),
            loader=LOADER + KEPT,
            epoch="if leads:\n    journal.append(loss)",
        ),
    ),
    "a collective unless there is one rank": (
        "rank0-only-collective",
        ddp(
            head=CLUSTER.format("average", "if self.world < 2:\n            return value"),
            loader=LOADER + KEPT,
            epoch="if leads:\n    journal.append(loss)",
        ),
        ddp(
            head=CLUSTER.format("mean", "if self.world < 2:\n            return value"),
            loader=LOADER + KEPT,
            epoch="if leads:\n    journal.append(loss)",
        ),
        ddp(
            head=CLUSTER.format("average", "if self.world < 2:\n            return value"),
            loader=LOADER + KEPT,
            epoch="if leads:\n    journal.note(loss)",
        ),
    ),
    "a collective of a class that a function chooses": (
        "rank0-only-collective",
        ddp(
            head=METERS.format("", "Shared"),
            loader=LOADER + METERED,
            epoch="if dist.get_rank() == 0:\n    print(gauge.total())",
        ),
        ddp(
            head=METERS.format("", "Local"),
            loader=LOADER + METERED,
            epoch="if dist.get_rank() == 0:\n    print(gauge.total())",
        ),
        ddp(
            head=METERS.format("", "Shared"),
            loader=LOADER + METERED,
            epoch="seen = gauge.total()\nif dist.get_rank() == 0:\n    print(seen)",
        ),
        ddp(
            head=METERS.format("", "Shared"),
            loader=LOADER + METERED,
            epoch="if dist.get_rank() == 0:\n    print(gauge.sum)",
        ),
    ),
    "a collective of what a function returns with others": (
        "rank0-only-collective",
        ddp(
            head=SESSION.format("total") + "session, me = opened()",
            epoch="if dist.get_rank() == 0:\n    session.total(loss)",
        ),
        ddp(
            head=SESSION.format("joint") + "session, me = opened()",
            epoch="if dist.get_rank() == 0:\n    session.total(loss)",
        ),
        ddp(
            head=SESSION.format("total") + "me, session = opened()",
            epoch="if dist.get_rank() == 0:\n    session.total(loss)",
        ),
    ),
    "a collective of a context": (
        "rank0-only-collective",
        ddp(
            head=SESSION.format("total"),
            epoch="with Session() as one:\n    if dist.get_rank() == 0:\n        one.total(loss)",
        ),
        ddp(
            head=SESSION.format("total"),
            epoch="with Session() as one:\n    one.total(loss)\n"
            "if dist.get_rank() == 0:\n    print(one)",
        ),
    ),
    "a collective behind a field with a type": (
        "rank0-only-collective",
        ddp(
            head=BUNDLE.format("gather", "Comm"),
            epoch="if context.rank == 0:\n    publish(context, rows)",
        ),
        ddp(
            head=BUNDLE.format("collect", "Comm"),
            epoch="if context.rank == 0:\n    publish(context, rows)",
        ),
        ddp(
            head=BUNDLE.format("gather", "Comm"),
            epoch="rows = publish(context, rows)\nif context.rank == 0:\n    print(rows)",
        ),
    ),
    "an end by an object that gets the loss of one rank": (
        "rank-dependent-control-flow",
        _rounds(FITS_BY.format("", "held_out(model, val_loader)", "guard.exhausted")),
        _rounds(
            FITS_BY.format(
                "dist.all_reduce(sums)", "held_out(model, val_loader)", "guard.exhausted"
            )
        ),
        _rounds(
            ANY_RANK
            + FITS_BY.format("", "held_out(model, val_loader)", "any_rank(guard.exhausted)")
        ),
    ),
    "an end by a flag that a method sets": (
        "rank-dependent-control-flow",
        _rounds(SETS_A_FLAG.format("total", "self.worse > 5")),
        _rounds(SETS_A_FLAG.format("average(total)", "self.worse > 5")),
        _rounds(ANY_RANK + SETS_A_FLAG.format("total", "any_rank(self.worse > 5)")),
    ),
    "an end by a loss that a loop sums": (
        "rank-dependent-control-flow",
        ddp(loader=EVALUATED, epoch=INLINE.format("", "worse > patience")),
        ddp(
            loader=EVALUATED,
            head=ANY_RANK,
            epoch=INLINE.format("score = any_rank(score)", "worse > patience"),
        ),
        ddp(
            loader=EVALUATED,
            epoch=INLINE.format("dist.reduce(score, 0)", "epoch > 20"),
        ),
    ),
    "a checkpoint that a helper reads": (
        "gpu0-extra-memory",
        ddp(head=WARM.format("", "model.load_state_dict"), set_up=SET_UP + "start(model, path)\n"),
        ddp(
            head=WARM.format(", 'cpu'", "model.load_state_dict"),
            set_up=SET_UP + "start(model, path)\n",
        ),
        ddp(
            head=WARM.format(", **options", "model.load_state_dict"),
            set_up=SET_UP + "start(model, path)\n",
        ),
        ddp(
            head=WARM.format(", map_location=place", "model.load_state_dict").replace(
                "path, **options", "path, place='cpu'"
            ),
            set_up=SET_UP + "start(model, path)\n",
        ),
        ddp(head=WARM.format("", "compare"), set_up=SET_UP + "start(model, path)\n"),
    ),
    "a checkpoint whose place is none by default": (
        "gpu0-extra-memory",
        ddp(
            head=WARM.format(", map_location=place", "model.load_state_dict").replace(
                "path, **options", "path, place=None"
            ),
            set_up=SET_UP + "start(model, path)\n",
        ),
        ddp(
            head=WARM.format(", map_location=place", "model.load_state_dict")
            .replace("path, **options", "path, place=None")
            .replace("weights(path)", "weights(path, 'cpu')"),
            set_up=SET_UP + "start(model, path)\n",
        ),
    ),
    "a checkpoint that an object keeps": (
        "gpu0-extra-memory",
        ddp(set_up=SET_UP + STORE.format("", "optimizer.load_state_dict(self.last['adam'])")),
        ddp(
            set_up=SET_UP
            + STORE.format(", map_location=place", "optimizer.load_state_dict(self.last['adam'])")
        ),
        ddp(set_up=SET_UP + STORE.format("", "del self.last").replace("self.last[", "other[")),
    ),
    "a checkpoint that goes straight into the model": (
        "gpu0-extra-memory",
        ddp(set_up=SET_UP + NESTED.format("")),
        ddp(set_up=SET_UP + NESTED.format(", map_location=f'cuda:{local_rank}'")),
        ddp(head=ON_CPU, set_up=SET_UP + NESTED.format(""), epoch="written(model, path)"),
    ),
}
