"""Mistakes in models, their wrappers and their losses."""

from __future__ import annotations

from tests.script.sources import ACCELERATE, SET_UP, STEP, ddp
from tests.script.twins.parts import FSDP, SHARDED

SIDE = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
        self.side = torch.nn.Linear(3, 3)

    def forward(self, x):
        {}
"""
IGNORES = STEP.replace("loss = model(batch).sum()", "out, _ = model(batch)\nloss = out.sum()")
DIVIDED = "accelerator.backward(loss / args.accumulation)"
BY_HAND = (
    ACCELERATE.replace("gradient_accumulation_steps=4", "")
    .replace("with accelerator.accumulate(model):", "with torch.autocast('cuda'):")
    .replace("accelerator.backward(loss)", "accelerator.backward(loss / 4)")
    .replace(
        "                optimizer.step()\n                optimizer.zero_grad()\n",
        "                if (step + 1) % 4 == 0:\n"
        "                    optimizer.step()\n                    optimizer.zero_grad()\n",
    )
)
SCHEDULED = ACCELERATE.replace(
    "    for epoch",
    "    steps = {}\n"
    "    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)\n"
    "    scheduler = accelerator.prepare(scheduler)\n    for epoch",
    1,
).replace("optimizer.step()\n", "optimizer.step()\n                scheduler.step()\n")
BY_FUNCTION = SCHEDULED.replace(
    "    steps = {}\n"
    "    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)\n",
    "    scheduler = make_scheduler(optimizer, len(loader), accelerator.num_processes)\n",
).replace(
    "def main(args):\n",
    "def make_scheduler(optimizer, batches, num_processes):\n"
    "    steps = {}\n"
    "    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)\n\n"
    "def main(args):\n",
    1,
)
LAST_ONE = """
def train(model, optimizer, batch, last):
    loss = model(batch).sum()
    {}
    if last:
        optimizer.step()
        optimizer.zero_grad()
"""
BY_FLAG = """
seen += 1
last = seen % 4 == 0
train(model, optimizer, batch, last)
"""
FILLED = """
def load(rank):
    if rank == 0:
        return AutoModelForCausalLM.from_pretrained("a/b")
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)

def empty(module):
    module.to_empty(device="cuda", recurse=False)
"""
SENT = (
    "from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict\n"
    "options = StateDictOptions(full_state_dict={}, broadcast_from_rank0={})\n"
    "set_model_state_dict(model, weights, options=options)\n"
)
OF_LAYERS = SHARDED.replace("FSDP({})", "load(rank)") + "fully_shard(model)\n"
WHOLE = 'model = AutoModelForCausalLM.from_pretrained("a/code-{}b", torch_dtype=torch.bfloat16)\n'
POLICY = """
import functools
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{{}}})
"""
TRAINED = """
from transformers import Trainer, TrainingArguments
arguments = TrainingArguments(
    "out", gradient_checkpointing=True, ddp_find_unused_parameters=True,
    gradient_checkpointing_kwargs={})
Trainer(model=model, args=arguments).train()
"""
CACHED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("a/b", use_cache={})
Trainer(model=model, args=TrainingArguments("out", {})).train()
"""
ACCUMULATOR = """
class Accumulator:
    def __init__(self, model, every):
        self.model, self.every, self.count = model, every, 0

    def __call__(self, batch):
        self.count += 1
        due = self.count % self.every == 0
        loss = self.model(batch).sum() / self.every
        loss.backward()
        if due:
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
SHARED = """
from torch.utils.checkpoint import checkpoint

class Net(torch.nn.Module):
    def forward(self, x):
        for _ in range(12):
            x = checkpoint(self.block, x, {})
        return x
"""
METER = """
class Meter:
    def __init__(self):
        self.total = 0

    def add(self, value):
        self.total = self.total + {}
"""
METERED = STEP + "meter.add(loss)\n"
FLAGGED = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
        self.side = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def forward(self, x, with_side=True):
        y = self.body(x)
        if not with_side:
            return y
        return self.side(y)
"""
ADAPTED = SHARDED.replace("FSDP({})", "FSDP(get_peft_model(load(), lora), {})")
PEFT = FSDP + "from peft import get_peft_model\n"
OF_LANGUAGE = """
from transformers import AutoModelForCausalLM, Trainer
trainer = Trainer(model=AutoModelForCausalLM.from_pretrained("a/b"), compute_metrics=accuracy{})
trainer.train()
"""
ADJUSTED = """
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer
arguments = DPOConfig("out", gradient_checkpointing=True, gradient_checkpointing_kwargs={})
DPOTrainer(model=model, args=arguments, peft_config=LoraConfig()).train()
"""


HELPED = (
    PEFT
    + """
import functools
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

def blocks():
    return {policy}

def adapted(name):
    return get_peft_model(AutoModelForCausalLM.from_pretrained(name), lora)

def wrapped(net, policy):
    return FSDP(net, auto_wrap_policy=policy{more})
"""
)
BY_BLOCK = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
WRAPPED = SHARDED.replace("FSDP({})", 'wrapped(adapted("a/b"), blocks())')


def helped(policy: str, more: str = "") -> str:
    return ddp(head=HELPED.format(policy=policy, more=more), set_up=WRAPPED)


def of_family(model: str, blocks: str) -> str:
    loads = f"net = AutoModelForCausalLM.from_pretrained('{model}')\nmodel = FSDP"
    wrap = SHARDED.format("net, policy").replace("model = FSDP", loads)
    return ddp(head=FSDP + POLICY.replace("{{{}}}", "{}").format(blocks), set_up=wrap)


ENGINE = STEP.replace("loss.backward()", "engine.backward(loss)\nseen.append({})")
SPECTRUM = """
class Net(torch.nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.register_buffer("graph", graph)
        self.values = {before}
        self.body = torch.nn.Linear(3, 3)

    def forward(self, x):
        {forward}
        return self.body(x) * values
"""
EIGH = "values, vectors = torch.linalg.eigh({})"


def spectrum(forward: str, before: str = "None") -> str:
    return ddp(head=SPECTRUM.format(forward=forward, before=before))


TWINS = {
    "a decomposition of a buffer in each step": (
        "forward-repeated",
        spectrum("graph = self.graph.double() + torch.eye(3)\n        " + EIGH.format("graph")),
        spectrum("values = self.values", "torch.linalg.eigvalsh(graph)"),
        spectrum(EIGH.format("self.graph * x.mean()")),
        spectrum(EIGH.format("self.body.weight")),
        spectrum(f"self.graph.mul_(0.9)\n        {EIGH.format('self.graph')}"),
        spectrum(f"self.graph[0] = x.mean()\n        {EIGH.format('self.graph')}"),
        spectrum(f"if self.values is None:\n            {EIGH.format('self.graph')}"),
        spectrum(EIGH.format("self.graph + torch.randn(3, 3)")),
        spectrum("values = torch.linalg.norm(self.graph)"),
    ),
    "a layer that forward never names": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(head=SIDE.format("return self.side(self.body(x))")),
    ),
    "a layer that replaces one of another module": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(head=SIDE.format("return self.body(x)").replace("self.side", "self.body.side")),
    ),
    "a layer whose result is dropped": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("more = self.side(x)\n        return self.body(x)")),
        ddp(head=SIDE.format("more = self.side(x)\n        return self.body(x) + more")),
    ),
    "a result that the loop ignores": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x), self.side(x)"), step=IGNORES),
        ddp(
            head=SIDE.format("return self.body(x), self.side(x)"),
            step=IGNORES.replace("_", "more").replace("out.sum()", "(out + more).sum()"),
        ),
    ),
    "a layer that is frozen": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(
            head=SIDE.format("return self.body(x)"),
            set_up=SET_UP.replace("DDP(Net()", "DDP(Net().requires_grad_(False)"),
        ),
    ),
    "a layer that DDP may leave out": (
        "ddp-unused-parameters",
        ddp(head=SIDE.format("return self.body(x)")),
        ddp(
            head=SIDE.format("return self.body(x)"),
            set_up=SET_UP.replace("(local_rank))", "(local_rank), find_unused_parameters=True)"),
        ),
    ),
    "a meter that keeps the graph": (
        "autograd-graph-retained",
        ddp(head=METER.format("value"), before="meter = Meter()", step=METERED),
        ddp(head=METER.format("value.item()"), before="meter = Meter()", step=METERED),
        ddp(head=METER.format("value.detach()"), before="meter = Meter()", step=METERED),
    ),
    "a list of losses, or of what the engine says": (
        "autograd-graph-retained",
        ddp(before="seen = []", step=ENGINE.format("loss")),
        ddp(before="seen = []", step=ENGINE.format("engine.global_steps")),
        ddp(before="seen = []", step=ENGINE.format("loss.item()")),
    ),
    "a layer that some steps skip": (
        "ddp-unused-parameters",
        ddp(head=FLAGGED, step=STEP.replace("(batch)", "(batch, with_side=epoch > 3)")),
        ddp(head=FLAGGED, step=STEP.replace("(batch)", "(batch, with_side=True)")),
    ),
    "an adapter in a flat parameter": (
        "fsdp-mixed-params-flatten",
        ddp(head=PEFT, set_up=ADAPTED.format("auto_wrap_policy=ModuleWrapPolicy({Block})")),
        ddp(head=PEFT, set_up=ADAPTED.format("auto_wrap_policy=policy, use_orig_params=True")),
    ),
    "an adapter under a policy of another function": (
        "fsdp-mixed-params-flatten",
        helped(BY_BLOCK),
        helped(BY_BLOCK, ", use_orig_params=True"),
        helped("fsdp_auto_wrap_policy(model)"),
        helped("own_policy"),
    ),
    "an adapter that is wrapped by itself": (
        "fsdp-mixed-params-flatten",
        ddp(head=PEFT, set_up=ADAPTED.format("auto_wrap_policy=ModuleWrapPolicy({Block})")),
        ddp(
            head=PEFT,
            set_up=ADAPTED.format("auto_wrap_policy=fsdp_auto_wrap_policy(model)"),
        ),
    ),
    "logits of all tokens": (
        "cuda-oom-eval-logits",
        OF_LANGUAGE.format(""),
        OF_LANGUAGE.format(", preprocess_logits_for_metrics=tokens"),
        OF_LANGUAGE.replace("ForCausalLM", "ForSequenceClassification").format(""),
    ),
    "re-entrant checkpoints with an adapter": (
        "activation-checkpoint-reentrant",
        ADJUSTED.format("{'use_reentrant': True}"),
        ADJUSTED.format("{'use_reentrant': True}, ddp_find_unused_parameters=False"),
    ),
    "accelerate divides as well": (
        "grad-accum-loss-scaling",
        ACCELERATE.replace("accelerator.backward(loss)", DIVIDED),
        ACCELERATE.replace("accelerator.backward(loss)", "accelerator.backward(loss / scale)"),
    ),
    "deepspeed divides as well": (
        "grad-accum-loss-scaling",
        ddp(head="import deepspeed", step="engine.backward(loss / accum_steps)\nengine.step()"),
        ddp(head="import deepspeed", step="engine.backward(loss)\nengine.step()"),
    ),
    "accumulated by hand": (
        "gradient-sync-every-microstep",
        BY_HAND,
        ACCELERATE,
    ),
    "accumulated by hand, held back": (
        "gradient-sync-every-microstep",
        BY_HAND,
        BY_HAND.replace("torch.autocast('cuda')", "accelerator.no_sync(model)"),
    ),
    "a schedule of one rank's batches": (
        "accelerate-scheduler-steps-n-times",
        SCHEDULED.format("len(loader) * args.epochs"),
        SCHEDULED.format("len(loader) * accelerator.num_processes * args.epochs"),
    ),
    "a schedule divided by the ranks in a function": (
        "accelerate-scheduler-steps-n-times",
        BY_FUNCTION.format("batches // num_processes"),
        BY_FUNCTION.format("batches // num_processes * num_processes"),
        BY_FUNCTION.format("batches"),
    ),
    "weights that nothing sends": (
        "fsdp-ram-efficient-random-weights",
        ddp(head=FSDP + FILLED, set_up=SHARDED.format("load(rank), param_init_fn=empty")),
        ddp(
            head=FSDP + FILLED,
            set_up=SHARDED.format("load(rank), param_init_fn=empty, sync_module_states=True"),
        ),
        ddp(
            head=FSDP + FILLED,
            set_up=SHARDED.format("load(rank), param_init_fn=empty") + SENT.format("True", "True"),
        ),
        ddp(
            head=FSDP + FILLED,
            set_up=SHARDED.format("load(rank), param_init_fn=empty")
            + "torch.distributed.checkpoint.load(state, checkpoint_id=path)\n",
        ),
    ),
    "a state that nothing sends": (
        "fsdp-ram-efficient-random-weights",
        ddp(head=FSDP + FILLED, set_up=OF_LAYERS + SENT.format("True", "False")),
        ddp(head=FSDP + FILLED, set_up=OF_LAYERS + SENT.format("True", "True")),
        ddp(head=FSDP + FILLED, set_up=OF_LAYERS + SENT.format("False", "False")),
    ),
    "every rank loads a large model": (
        "every-rank-loads-full-model",
        ddp(head=FSDP + WHOLE.format(33), set_up=SHARDED.format("model")),
        ddp(head=FSDP + WHOLE.format(1.5), set_up=SHARDED.format("model")),
        ddp(
            head=FSDP + FILLED.replace("a/b", "a/code-33b"),
            set_up=SHARDED.format("load(rank), param_init_fn=empty, sync_module_states=True"),
        ),
    ),
    "accumulated by an object": (
        "gradient-sync-every-microstep",
        ddp(head=ACCUMULATOR, before="step = Accumulator(model, 4)", step="step(batch)"),
        ddp(
            head=ACCUMULATOR.replace("        loss =", "        with self.model.no_sync(): loss ="),
            before="step = Accumulator(model, 4)",
            step="step(batch)",
        ),
    ),
    "accumulated by a flag": (
        "gradient-sync-every-microstep",
        ddp(head=LAST_ONE.format("loss.backward()"), step=BY_FLAG),
        ddp(
            head=LAST_ONE.format(
                "with nullcontext() if last else model.no_sync(): loss.backward()"
            ),
            step=BY_FLAG,
        ),
        ddp(head=LAST_ONE.format("loss.backward()"), step=BY_FLAG.replace("seen % 4 == 0", "True")),
    ),
    "a shared block": (
        "activation-checkpoint-reentrant",
        ddp(head=SHARED.format("use_reentrant=True")),
        ddp(head=SHARED.format("use_reentrant=False")),
    ),
    "the whole model as a unit": (
        "fsdp-wrap-policy-wrong",
        ddp(head=FSDP + POLICY.format("LlamaModel"), set_up=SHARDED.format("net, policy")),
        ddp(head=FSDP + POLICY.format("LlamaDecoderLayer"), set_up=SHARDED.format("net, policy")),
        ddp(head=FSDP + POLICY.format("Block"), set_up=SHARDED.format("net, policy")),
    ),
    "the block of another family of models": (
        "fsdp-wrap-policy-wrong",
        of_family("Qwen/Qwen2.5-0.5B", "{LlamaDecoderLayer}"),
        of_family("Qwen/Qwen2.5-0.5B", "{Qwen2DecoderLayer}"),
        of_family("Qwen/Qwen2.5-0.5B", "{Qwen2DecoderLayer, LlamaDecoderLayer}"),
        of_family("org/of-our-own", "{LlamaDecoderLayer}"),
        of_family("Qwen/Qwen2.5-0.5B", "{Block}"),
        of_family("org/Llama-from-Qwen2", "{LlamaDecoderLayer}"),
    ),
    "a cache beside checkpoints": (
        "launch-config-invalid",
        CACHED.format("True", "gradient_checkpointing=True"),
        CACHED.format("False", "gradient_checkpointing=True"),
        CACHED.format("True", "gradient_checkpointing=False"),
    ),
    "a cache beside checkpoints that a method switches on": (
        "launch-config-invalid",
        CACHED.format("True", "") + "model.gradient_checkpointing_enable()\n",
        CACHED.format("True", "").replace("Trainer(", "model.generate()\nTrainer("),
    ),
    "re-entrant with the search for unused parameters": (
        "activation-checkpoint-reentrant",
        TRAINED.format("{'use_reentrant': True}"),
        TRAINED.format("{'use_reentrant': False}"),
    ),
    "a schedule of what the ranks divide": (
        "accelerate-scheduler-steps-n-times",
        SCHEDULED.format("len(rows) // (8 * accelerator.num_processes) * args.epochs"),
        SCHEDULED.format("len(rows) // 8 * args.epochs"),
        SCHEDULED.format("len(rows) // (8 * accelerator.gradient_accumulation_steps)"),
    ),
    "a schedule of one rank's batches, in two lines": (
        "accelerate-scheduler-steps-n-times",
        SCHEDULED.format("each * args.epochs").replace(
            "    steps =", "    each = len(loader)\n    steps ="
        ),
        SCHEDULED.format("each * args.epochs").replace(
            "    steps =", "    each = len(loader) * accelerator.num_processes\n    steps ="
        ),
    ),
}
