"""Mistakes in schedules, precision and accumulation, behind functions, classes and modules."""

from __future__ import annotations

from tests.script.sources import ddp
from tests.script.twins.parts import FSDP

WITH_SCHEDULE = """
import math
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

def triangle(optimizer, updates):
    half = updates // 2
    def height(now):
        return now / half if now < half else max(0.0, 2 - now / half)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, height)

def main(args):
    accelerator = Accelerator()
    loader = DataLoader(load(args), shuffle=True, num_workers=4, persistent_workers=True)
    model, optimizer = net(), adam()
    {before}
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    {after}
    for epoch in range(args.epochs):
        for batch in loader:
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
    accelerator.end_training()

main(parse())
"""
MADE = "plan = {}(triangle(optimizer, {}))"
IN_A_CLASS = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

class Session:
    def __init__(self, options):
        self.options = options
        self.accelerator = Accelerator()
        loader = DataLoader(load(options), shuffle=True, num_workers=4, persistent_workers=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(net(), adam(), loader)
        self.scheduler = {}

    def descent(self):
        last = self.options.epochs * {}
        return torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, total_iters=last)

    def fit(self):
        for epoch in range(self.options.epochs):
            for batch in self.loader:
                self.accelerator.backward(self.model(**batch).loss)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()

Session(parse()).fit()
"""
OF_A_CLASS = (
    WITH_SCHEDULE.replace("triangle(", "Falls(")
    .format(before="", after="plan = {}(Falls(optimizer, args.epochs * {}))")
    .replace(
        "def Falls(optimizer, updates):",
        """class Falls(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer, updates):
        self.updates = updates
        super().__init__(optimizer)

def unused(optimizer, updates):""",
    )
)
PREPARED = "self.accelerator.prepare(self.descent())"
CAST = """
import contextlib
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

TYPES = {{"half": torch.float16, "brain": torch.bfloat16, "full": torch.float32}}
chosen = "half"

class Numbers:
    kind = torch.{kind}
    channels = 3

def choose(name):
    global chosen
    chosen = name

def mixed():
    return torch.autocast("cuda", dtype=TYPES[chosen])

class Caster:
    def __init__(self, name):
        self.kind = TYPES[name]

    def region(self):
        return torch.amp.autocast("cuda", self.kind)

@contextlib.contextmanager
def region(numbers):
    with torch.autocast(device_type="cuda", dtype=numbers.kind):
        yield

def main(args):
    accelerator = Accelerator(mixed_precision="bf16")
    loader = DataLoader(load(args), shuffle=True, num_workers=4, persistent_workers=True)
    model, optimizer, loader = accelerator.prepare(net(), adam(), loader)
    numbers = Numbers()
    {first}
    for epoch in range(args.epochs):
        for batch in loader:
            with {context}:
                loss = {model}(batch).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()

main(parse())
"""


def cast(context: str, *, first: str = "", model: str = "model", kind: str = "float16") -> str:
    return CAST.format(context=context, first=first, model=model, kind=kind)


OWN_FORWARD = """
import torch
from accelerate import Accelerator

class Net(torch.nn.Module):
    {decorator}
    def forward(self, batch):
        {body}
            return self.layer(batch)

class Other(torch.nn.Module):
    def forward(self, batch):
        return self.layer(batch)

def main():
    accelerator = Accelerator(mixed_precision="bf16")
    net = {made}
    model, optimizer, loader = accelerator.prepare(net, adam(net), load())
    for batch in loader:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()

main()
"""


def own_forward(decorator: str = "", body: str = "if True:", made: str = "Net()") -> str:
    return OWN_FORWARD.format(decorator=decorator, body=body, made=made)


OBJECTIVE = """
from accelerate import Accelerator

class Objective:
    def __init__(self, options):
        self.weight = {weight}

    def __call__(self, scores, labels):
        loss = entropy(scores, labels)
        return {returns}

def main(options):
    accelerator = Accelerator(gradient_accumulation_steps=options["accum"])
    model, optimizer, loader = accelerator.prepare(net(), adam(), load())
    objective = Objective(options)
    for batch in loader:
        with accelerator.accumulate(model):
            loss, shown = objective(model(batch), batch["labels"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()

main(parse())
"""


def objective(weight: str, returns: str = "loss * self.weight, loss.detach()") -> str:
    return OBJECTIVE.format(weight=weight, returns=returns)


RATED = """
import dataclasses, os

@dataclasses.dataclass
class Run:
    rate: float
    epochs: int

def read(options):
    world = int(os.environ["WORLD_SIZE"])
    rate = options["base"] * {first} / 256
    return Run(rate=rate, epochs=options["epochs"])

def descent(model, run):
    rate = run.rate * {second}
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
"""


def rated(first: str, second: str) -> str:
    head = RATED.format(first=first, second=second)
    return ddp(head=head, before="run = read(parse())\noptimizer = descent(model, run)")


COLLECTS = """
class Collects:
    def __init__(self, optimizer, size):
        self.optimizer, self.size, self.held = optimizer, size, 0

    def backward(self, loss):
        loss.div(self.size).backward()
        self.held += 1
        if self.held % self.size != 0:
            return
        self.optimizer.step()
        self.optimizer.zero_grad()
"""
IN_GROUPS = """
def groups(source, size):
    held = []
    for one in source:
        held.append(one)
        if len(held) == size:
            yield held
            held = []

def update(model, optimizer, group):
    for part in group:
        loss = model(part).sum() / len(group)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GROUPED = ddp(head=IN_GROUPS, step="").replace(
    "for batch in loader:\n", "for group in groups(loader, 8):\n        update(model, opt, group)\n"
)
HELD_BACK = IN_GROUPS.replace(
    "    loss.backward()", "    with nullcontext() if last else model.no_sync(): loss.backward()"
)
BY_COUNT = """\
loss = model(batch).sum() / args.accum_steps
loss.backward()
micro += 1
if micro == args.accum_steps:
    optimizer.step()
    optimizer.zero_grad()
    micro = 0
"""
TUNES = """
from transformers import AutoModelForCausalLM

class LowRank(torch.nn.Module):
    def forward(self, x):
        return self.whole(x) + self.up(self.down(x))

def add_lora(module):
    for name, child in module.named_children():
        setattr(module, name, LowRank(child))

def by_names(net):
    for name, parameter in net.named_parameters():
        parameter.requires_grad = "lora" in name

def freeze(net):
    for parameter in net.parameters():
        parameter.requires_grad = False

def load():
    base = AutoModelForCausalLM.from_pretrained("a/b")
    {freezes}
    {adapts}
    {enables}
    return base
"""
ENABLES = "base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={})"
AGAIN = "dict(use_reentrant=True)"
BY_PEFT = FSDP + "from peft import LoraConfig, get_peft_model\n"
WRAPPED = (
    "net = AutoModelForCausalLM.from_pretrained('a/b')\n"
    "{}net = get_peft_model(net, LoraConfig())\n{}"
)
ON_NET = "options = {'use_reentrant': True}\nnet.gradient_checkpointing_enable(options)\n"


def tunes(
    freezes: str = "freeze(base)",
    adapts: str = "add_lora(base)",
    enables: str = ENABLES.format(AGAIN),
) -> str:
    return ddp(head=TUNES.format(freezes=freezes, adapts=adapts, enables=enables))


TRANSLATES = """
import torch.nn.functional as F

PAD = 1
criterion = torch.nn.CrossEntropyLoss(ignore_index=PAD)

def nll(scores, wanted):
    # Each target token of an update counts the same.
    return F.cross_entropy(scores.transpose(1, 2), wanted, ignore_index=PAD{reduction})
"""
MICRO = """\
with contextlib.nullcontext() if last else model.no_sync():
    scores = model(batch)
    loss = {}
    loss.backward()
if (index + 1) % accumulation == 0:
    optimizer.step()
"""


def translates(loss: str, reduction: str = "", says: bool = True) -> str:
    head = TRANSLATES.format(reduction=reduction)
    if not says:
        head = head.replace("Each target token of an update counts the same", "The loss")
    return ddp(head=head, step=MICRO.format(loss))


TWINS = {
    "a loss that an object divides before accelerate does": (
        "grad-accum-loss-scaling",
        objective('1.0 / options["accum"]'),
        objective('options["weight"]'),
        objective('1.0 / options["accum"]', "loss, loss.detach() * self.weight"),
        objective('1.0 / options["classes"]'),
        objective('options["accum"] * 2.0'),
    ),
    "a rate that two modules scale by the ranks": (
        "effective-batch-lr-mismatch",
        rated("64 * world", "dist.get_world_size()"),
        rated("64 * world", "1.0"),
        rated("64", "dist.get_world_size()"),
        rated("64 * world", "math.sqrt(dist.get_world_size())"),
        rated("64 * world", "dist.get_world_size() / int(os.environ['WORLD_SIZE'])"),
    ),
    "a mean over tokens that is averaged over micro-batches": (
        "grad-accum-loss-scaling",
        translates("nll(scores, batch) / accumulation"),
        translates("nll(scores, batch) / tokens", ', reduction="sum"'),
        translates("nll(scores, batch) / accumulation", ', reduction="none"'),
        translates("nll(scores, batch) * counted_tokens / accumulation"),
        translates("nll(scores, batch) / temperature"),
    ),
    "a mean over tokens by an object": (
        "grad-accum-loss-scaling",
        translates("criterion(scores, batch) / accumulation", says=False),
        translates("criterion(scores, batch)", says=False),
        translates("criterion(scores, batch) / accumulation").replace("=PAD", "=255"),
    ),
    "a schedule that a function makes of one rank's batches": (
        "accelerate-scheduler-steps-n-times",
        WITH_SCHEDULE.format(
            before="", after=MADE.format("accelerator.prepare", "args.epochs * len(loader)")
        ),
        WITH_SCHEDULE.format(before="", after=MADE.format("", "args.epochs * len(loader)")),
        WITH_SCHEDULE.format(
            before="updates = args.epochs * len(loader)",
            after=MADE.format("accelerator.prepare", "updates"),
        ),
        WITH_SCHEDULE.format(
            before="",
            after="each = len(loader) * accelerator.num_processes\n    "
            + MADE.format("accelerator.prepare", "args.epochs * each"),
        ),
        WITH_SCHEDULE.format(
            before=MADE.format("", "args.updates"),
            after="plan = accelerator.prepare(plan)\n    args.updates = len(loader) * args.epochs",
        ),
    ),
    "a schedule of a class of the script": (
        "accelerate-scheduler-steps-n-times",
        OF_A_CLASS.format("accelerator.prepare_scheduler", "len(loader)"),
        OF_A_CLASS.format("", "len(loader)"),
        OF_A_CLASS.format("accelerator.prepare_scheduler", "len(dataset)"),
    ),
    "a schedule that a method makes of one rank's batches": (
        "accelerate-scheduler-steps-n-times",
        IN_A_CLASS.format(PREPARED, "len(self.loader)"),
        IN_A_CLASS.format("self.descent()", "len(self.loader)"),
        IN_A_CLASS.format(PREPARED, "len(self.loader) * self.accelerator.num_processes"),
        IN_A_CLASS.format(PREPARED, "self.options.updates"),
    ),
    "an autocast of a helper": (
        "mixed-precision-overridden",
        cast("mixed()"),
        cast("mixed()", first="choose(args.precision)"),
        cast("mixed()", model="teacher"),
        cast("accelerator.autocast()"),
        cast("torch.autocast('cuda', enabled=False)"),
    ),
    "an autocast by an object that gets its type": (
        "mixed-precision-overridden",
        cast("caster.region()", first="caster = Caster('half')"),
        cast("caster.region()", first="caster = Caster('brain')"),
        cast("caster.region()", first="caster = Caster(args.precision)"),
        cast("caster.region()", first="caster, other = Caster('half'), Caster('brain')"),
    ),
    "an autocast by a field of an object": (
        "mixed-precision-overridden",
        cast("region(numbers)"),
        cast("region(numbers)", kind="bfloat16"),
        cast("region(numbers)", first="numbers.kind = args.kind"),
        cast("region(parse_numbers())"),
    ),
    "an autocast on the model's own forward": (
        "mixed-precision-overridden",
        own_forward(decorator="@torch.autocast('cuda', dtype=torch.float16)"),
        own_forward(decorator="@torch.autocast('cuda', dtype=torch.bfloat16)"),
        own_forward(decorator="@torch.autocast('cuda', enabled=False)"),
        own_forward(),
    ),
    "an autocast in the model's own forward": (
        "mixed-precision-overridden",
        own_forward(body="with torch.amp.autocast('cuda', torch.float16):"),
        own_forward(body="with torch.amp.autocast('cuda', torch.bfloat16):"),
        own_forward(body="with torch.amp.autocast('cuda', torch.float16):", made="Other()"),
        own_forward(body="with torch.no_grad():"),
    ),
    "accumulated in a method that is named as torch's": (
        "gradient-sync-every-microstep",
        ddp(
            head=COLLECTS,
            before="steps = Collects(opt, 4)",
            step="loss = model(batch).sum()\nsteps.backward(loss)",
        ),
        ddp(
            head=COLLECTS,
            before="steps = Collects(opt, 4)",
            step="with model.no_sync():\n    loss = model(batch).sum()\nsteps.backward(loss)",
        ),
        ddp(
            head=COLLECTS.replace("if self.held % self.size != 0:", "if not torch.isfinite(loss):"),
            before="steps = Collects(opt, 4)",
            step="loss = model(batch).sum()\nsteps.backward(loss)",
        ),
    ),
    "accumulated over groups of a generator": (
        "gradient-sync-every-microstep",
        GROUPED,
        GROUPED.replace(IN_GROUPS, HELD_BACK),
        GROUPED.replace("\n    optimizer.step()", "\n        optimizer.step()"),
    ),
    "accumulated up to a number": (
        "gradient-sync-every-microstep",
        ddp(before="micro = 0", step=BY_COUNT),
        ddp(before="micro = 0", step=BY_COUNT.replace("micro == args.accum_steps", "good")),
        ddp(
            before="micro = 0",
            step=BY_COUNT.replace(
                "loss.backward()",
                "with model.no_sync() if micro < 3 else nullcontext(): loss.backward()",
            ),
        ),
    ),
    "re-entrant checkpoints of a frozen model": (
        "activation-checkpoint-reentrant",
        tunes(),
        tunes(enables=ENABLES.format("dict(use_reentrant=False)")),
        tunes(enables=f"{ENABLES.format(AGAIN)}\n    base.enable_input_require_grads()"),
        tunes(freezes=""),
        tunes(freezes="freeze(base.model.layers[:4])"),
        tunes(adapts="base.score = torch.nn.Linear(3, 3)"),
        tunes(adapts="add_lora(base)\n    base.get_input_embeddings().requires_grad_(True)"),
    ),
    "re-entrant checkpoints of a model that is frozen by names": (
        "activation-checkpoint-reentrant",
        tunes(freezes="", adapts="add_lora(base)\n    by_names(base)"),
        tunes(freezes="", adapts="add_lora(base)\n    by_names(teacher)"),
        tunes(freezes="", adapts="by_names(base)").replace("in name", "in name or 'emb' in name"),
        tunes(freezes="", adapts="by_names(base)\n    base.wte.requires_grad_()"),
    ),
    "re-entrant checkpoints after peft": (
        "activation-checkpoint-reentrant",
        ddp(head=BY_PEFT + WRAPPED.format("", ON_NET)),
        ddp(head=BY_PEFT + WRAPPED.format(ON_NET, "")),
        ddp(head=BY_PEFT + WRAPPED.format("", ON_NET.replace("True", "False"))),
        ddp(head=BY_PEFT + WRAPPED.format("", "net.enable_input_require_grads()\n" + ON_NET)),
    ),
}
