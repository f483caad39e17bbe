"""What several checks read out of a script's source, and its lines as they should be."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain

from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Environment
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.evidence.source_text import syntax_tree

STRATEGIES = {
    "torch.nn.parallel.DistributedDataParallel": "DDP",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP1",
    "torch.distributed.fsdp.fully_shard": "FSDP2",
}
WRAPPERS = tuple(STRATEGIES)
TRAINERS = ("Trainer", "TRL", "Lightning")
"""Frameworks whose loop no line of the script shows."""
PLAIN = frozenset({"DDP", "FSDP1", "FSDP2", "TorchMetrics"})
"""What leaves samplers, devices and files to the script. Other frameworks care for some of it."""
OF_JOINING = (".world_size", ".dist_url", ".init_method", ".master_addr", ".main_addr")
"""Options of which the reader of scripts keeps what the source assigns to them."""
LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.DistributedSampler"
MOST_QUOTED = 80
LONG = 300
"""Characters from which on a statement may be cut off."""
EVALUATES = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|test|eval|dev)(?:$|[^a-z])", re.I)


def is_plain(script: Script, *also: str) -> bool:
    """Whether it wraps a model by DDP or FSDP itself, and no framework but ``also`` helps."""
    alone = {one.framework for one in script.imports} <= PLAIN | {*also}
    wraps = script.of(*WRAPPERS) or any(one.framework in also for one in script.imports)
    return alone and bool(wraps) and not script.unseen


def own_variables(
    script: Script, environment: Environment | None
) -> Mapping[str, tuple[str, SourceLine]]:
    """The environment variables that it always sets itself to a text: value and line.

    Not those of the environment, of which other checks tell.
    """
    found: dict[str, tuple[str, SourceLine]] = {}
    for one in script.settings:
        text, name = one.value.strip("\"'"), one.name.removeprefix("os.environ[").removesuffix("]")
        there = environment is not None and environment.get(name) is not None
        if name != one.name and text != one.value and not (one.within or there):
            found[name] = text, one.at
    return found


def trains(script: Script) -> bool:
    """Whether it has a training loop, or a framework that has one."""
    by_itself = any(loop.kind == "training" for loop in script.loops)
    return by_itself or any(one.framework in TRAINERS for one in script.imports)


def shown(line: SourceLine) -> str:
    """A line with its text, such as ``train.py:12 (`model = DDP(model)`)``."""
    cut = "…" * (len(line.text) > MOST_QUOTED)
    return f"{line.place} (`{line.text[:MOST_QUOTED]}{cut}`)"


def evaluates(call: SourceCall) -> bool:
    """Whether the names around it say that it is for evaluation."""
    # Of several calls in one statement, such as of a dictionary, each is for itself.
    name, text = call.name.rpartition(".")[2], call.at.text
    alone = text.count(f"{name}(") < 2 and len(text) < LONG
    target = text.partition("=")[0] if alone else call.assigned
    own = f"{target} {written(call)} {call.at.function}"
    return bool(EVALUATES.search(own.replace("_", " ")))


def is_trained_on(loader: SourceCall, script: Script) -> bool:
    """Whether a training loop names the variable of a DataLoader."""
    word = re.compile(rf"\b{re.escape(loader.assigned)}\b")
    loops = (one.at.text for one in script.loops if one.kind == "training")
    return bool(loader.assigned) and any(map(word.search, loops))


def worker_count(loader: SourceCall) -> int | None:
    """The number of workers of a DataLoader; None: the source does not show it."""
    if "**" in loader.keywords:
        return None
    given = loader.argument("num_workers", 5) or "0"
    made = loader.origin("num_workers", 5)
    if len(made) == 1 and made[0].isdigit():
        return int(made[0])
    return int(given) if given.isdigit() else None


def option(text: str, script: Script, launch: Launch) -> Setting | None:
    """The option of joining that the source reads as ``args.world_size``.

    None: it is not known, or the script sets it itself.
    """
    key = f".{text.rpartition('.')[2]}"
    own = any(one.name == key for one in script.settings)
    return launch.argument(text) if "." in text and key in OF_JOINING and not own else None


def started_workers(loader: SourceCall, launch: Launch | None) -> int | None:
    """The number that the source shows, or that the script is started with; None: unknown."""
    given, made = loader.argument("num_workers", 5) or "", loader.origin("num_workers", 5)
    texts = (given, *made) if len(made) == 1 else (given,)
    named = (text for text in texts if "." in text or "[" in text)
    options = (launch.argument(text) for text in named if launch is not None)
    setting = next((one for one in options if one is not None), None)
    return setting.number if setting is not None else worker_count(loader)


def batches_on_cuda(loader: SourceCall, script: Script) -> SourceLine | None:
    """Where the dataset or the collate function of a loader uses the GPU."""
    made = loader.origin("dataset", 0)
    by_dataset = (one.cuda for one in script.datasets if made == (one.name,))
    by_collate = (one.at for one in script.collates_on_cuda if one.loader == loader.at)
    return next((one for one in (*by_dataset, *by_collate) if one is not None), None)


def written(call: SourceCall) -> str:
    """The call alone, without the rest of its statement."""
    name = call.name.rpartition(".")[2]
    keywords = [
        f"**{value}" if keyword == "**" else f"{keyword}={value}"
        for keyword, value in call.keywords.items()
        if keyword not in chain(*call.spread.values())
    ]
    keywords += [f"**{name}" for name in call.spread]
    function = f"{call.on}.{name}" if call.on else name
    return f"{function}({', '.join((*call.arguments, *keywords))})"


def targets(call: SourceCall) -> tuple[str, ...]:
    """The variables that the statement of a call assigns, such as ``model, loader``."""
    tree = _parsed(call.at.text)
    statement = tree.body[0] if tree is not None and tree.body else None
    if not isinstance(statement, ast.Assign):
        return ()
    first = statement.targets[0]
    parts = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
    return tuple(map(ast.unparse, parts))


def with_keywords(call: SourceCall, **values: str | None) -> str:
    """The statement of a call with other keyword arguments; None removes one."""
    spread = {*chain(*call.spread.values())}
    tree = _parsed(call.at.text) if not spread & values.keys() else None
    name = call.name.rpartition(".")[2]
    count = len(call.keywords.keys() - spread) + len(call.spread)
    for node in ast.walk(tree) if tree is not None else ():
        own = isinstance(node, ast.Call) and len(node.keywords) == count
        if own and isinstance(node, ast.Call) and len(node.args) == len(call.arguments):
            node.keywords = [word for word in node.keywords if word.arg not in values]
            node.keywords += [
                ast.keyword(arg=keyword, value=ast.parse(value, mode="eval").body)
                for keyword, value in values.items()
                if value is not None
            ]
            return ast.unparse(tree).removesuffix("\n    pass") if tree is not None else ""
    given = ", ".join(f"{keyword}={value}" for keyword, value in values.items() if value)
    return f"{name}(..., {given})"


def _parsed(text: str) -> ast.Module | None:
    for whole in (text, f"{text} pass"):
        with suppress(SyntaxError, ValueError):
            return syntax_tree(whole)
    return None
