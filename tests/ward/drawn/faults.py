"""Sicknesses. Those with a dose pay ``--cost-ms``, which is 0 where the script is sound."""

from tests.ward.drawn.part import Fault

COST = {"options": 'parser.add_argument("--cost-ms", type=float, default=0.0)'}
WAIT = """
def $work(milliseconds):
    if milliseconds:
        time.sleep(milliseconds / 1000)  # HERE
"""
BURN = """
def $work(milliseconds):
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:  # HERE
        sorted(str(number) for number in range(50))  # HERE
"""
EVALUATE = """
def $work(milliseconds):
    model.eval()
    until = time.perf_counter() + milliseconds / 1000
    with torch.no_grad():
        while time.perf_counter() < until:  # HERE
            model.module(table[:$batch])  # HERE
    model.train()
"""
SAVE = """
def $work(milliseconds):
    until = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < until:  # HERE
        torch.save(model.state_dict(), os.devnull)  # HERE
"""
CLEAN = """
def $work(batch, milliseconds):
    until = time.thread_time() + milliseconds / 1000
    while time.thread_time() < until:  # HERE
        sorted(str(number) for number in range(50))  # HERE
    return batch.clone()
"""
COUNT = """
def $work():
    counts = {}
    while True:
        for number in range(100_000):  # HERE
            counts[number % 97] = counts.get(number % 97, 0) + 1  # HERE
"""
PAY = "$work(args.cost_ms)  # HERE"
ON_RANK = "if rank == $rank:\n    " + PAY
RARELY = "if rank == 0 and step % $every == 0:\n    " + PAY
DATA = ("dataloader-bottleneck",)
IN_ORDER = ("map", "iterable", "shards", "memory")


def _costly(how: str, slot: str, text: str) -> dict[str, str]:
    return {**COST, "helpers": how, slot: text}


FAULTS = (
    Fault(name="slow items", slots=_costly(WAIT, "item", PAY), roots=DATA, per="item"),
    Fault(name="costly items", slots=_costly(BURN, "item", PAY), roots=DATA, per="item"),
    Fault(
        name="slow items on one rank",
        slots=_costly(WAIT, "item", ON_RANK),
        roots=DATA,
        ranked=True,
        per="item",
    ),
    Fault(name="slow shards", slots=_costly(WAIT, "shard", PAY), roots=DATA),
    Fault(
        name="slow collate",
        slots=_costly(BURN, "collate", PAY),
        roots=("collate-bottleneck",),
        loaders=IN_ORDER,
    ),
    Fault(
        name="slow forward on one rank",
        slots=_costly(BURN, "forward", ON_RANK),
        roots=("straggler-rank",),
        ranked=True,
    ),
    Fault(
        name="own code on rank 1",
        slots=_costly(BURN, "between", ON_RANK),
        roots=("straggler-rank",),
        rank=1,
        ranked=True,
    ),
    Fault(
        name="preparing each batch",
        slots=_costly(BURN, "begin", PAY),
        roots=("step-loop-overhead",),
    ),
    Fault(
        name="logging in each step", slots=_costly(WAIT, "end", PAY), roots=("step-loop-overhead",)
    ),
    Fault(
        name="rank 0 draws now and then",
        slots=_costly(BURN, "end", RARELY),
        roots=("rank0-extra-work",),
        rank=0,
        ranked=True,
        per="every",
    ),
    Fault(
        name="rank 0 evaluates",
        slots=_costly(EVALUATE, "end", RARELY),
        roots=("rank0-extra-work",),
        rank=0,
        ranked=True,
        per="every",
    ),
    Fault(
        name="rank 0 saves",
        slots=_costly(SAVE, "end", RARELY),
        roots=("checkpoint-stall",),
        per="every",
    ),
    Fault(
        name="cleaning each batch",
        slots=_costly(CLEAN, "begin", "$inputs = $work($inputs, args.cost_ms)  # HERE"),
        roots=("collate-bottleneck",),
    ),
    Fault(
        name="waiting in each step",
        slots=_costly(WAIT, "begin", PAY),
        roots=("step-loop-overhead",),
    ),
    Fault(
        name="larger batches on one rank",
        slots={
            "begin": "if rank == $rank:\n    $inputs = torch.cat([$inputs] * 3)\n"
            "    labels = torch.cat([labels] * 3)"
        },
        roots=("uneven-work-per-rank", "straggler-rank"),
        ranked=True,
        per="never",
    ),
    Fault(
        name="workers anew in each epoch",
        slots={"persistent": "False"},
        values={"epoch": (5, 8)},
        loaders=("map, workers",),
        roots=("worker-restart-each-epoch",),
        per="never",
    ),
    Fault(
        name="collections of garbage",
        slots={
            "imports": "import gc",
            "before": "heap = [{number} for number in range(1_500_000)]",
            "end": "gc.collect()  # HERE",
        },
        roots=("gc-pause-straggler", "step-loop-overhead"),
        per="never",
    ),
    Fault(
        name="a thread that counts",
        slots={
            "imports": "import threading",
            "helpers": COUNT,
            "before": "if rank == $rank:\n    threading.Thread(target=$work, daemon=True).start()",
        },
        roots=("interpreter-lock-held",),
        ranked=True,
        per="never",
    ),
    Fault(
        name="all ranks raise",
        slots={"end": 'if step == $at:\n    raise KeyError(f"label {step}")  # HERE'},
        roots=("script-error",),
        per="never",
        live=False,
    ),
    Fault(
        name="one rank ends early",
        slots={"end": "if step == $at and rank == $rank:\n    raise SystemExit  # HERE"},
        roots=("uneven-inputs-per-rank", "dead-rank"),
        per="never",
        live=False,
    ),
    Fault(
        name="losses are kept",
        slots={"before": "losses = []", "end": "losses.append(loss * 2)  # HERE"},
        roots=("autograd-graph-retained", "host-memory-leak"),
        loops=("epochs", "iterator", "function", "trainer", "generator"),
        per="never",
        live=False,
    ),
    Fault(
        name="an unused layer",
        slots={"extra": "self.old_head = nn.Linear(8, 8)"},
        roots=("ddp-unused-parameters",),
        per="never",
        live=False,
    ),
    Fault(
        name="no sampler for the ranks",
        slots={"sampler": "sampler = torch.utils.data.RandomSampler(data)"},
        roots=("duplicate-data-across-ranks",),
        per="never",
        live=False,
    ),
    Fault(
        name="no set_epoch",
        slots={"sampler": "sampler = DistributedSampler(data)", "reshuffle": ""},
        values={"epoch": (12, 20)},
        roots=("missing-set-epoch",),
        per="never",
        live=False,
    ),
    Fault(
        name="one rank raises",
        slots={
            "end": "if step == $at and rank == $rank:\n"
            '    raise ValueError(f"bad record in step {step}")  # HERE'
        },
        roots=("dead-rank",),
        ranked=True,
        per="never",
        live=False,
    ),
    Fault(
        name="one rank sleeps",
        slots={"end": "if step == $at and rank == $rank:\n    time.sleep(10_000)  # HERE"},
        roots=("rank-stuck-outside-collective",),
        ranked=True,
        per="never",
    ),
    Fault(
        name="a collective on one rank",
        slots={"end": "if step == $at and rank == 0:\n    dist.barrier()  # HERE"},
        roots=("rank0-only-collective", "rank-dependent-control-flow"),
        per="never",
    ),
    Fault(
        name="other shapes",
        slots={
            "end": "if step == $at:\n    counts = torch.zeros(rank + 2)\n"
            "    dist.all_reduce(counts)  # HERE"
        },
        roots=("mismatched-collective-shapes",),
        per="never",
        live=False,
    ),
    Fault(
        name="batches are kept",
        slots={
            "before": "history = []",
            "end": "history.append(torch.ones(2_000_000))  # HERE",
        },
        roots=("host-memory-leak",),
        per="never",
        live=False,
    ),
)
