"""The full names of what a module uses, through its imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from ddoctor.script.modules import Module, base_of

# Where torch defines what it also offers under a shorter name.
MOVED = (
    ("torch.utils.data.distributed.", "torch.utils.data."),
    ("torch.utils.data.dataloader.", "torch.utils.data."),
    ("torch.utils.data.dataset.", "torch.utils.data."),
    ("torch.nn.parallel.distributed.", "torch.nn.parallel."),
    ("torch.nn.parallel.DataParallel", "torch.nn.DataParallel"),
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch.distributed.fsdp.fully_sharded_data_parallel.", "torch.distributed.fsdp."),
    ("torch.distributed._composable.fsdp.", "torch.distributed.fsdp."),
    ("torch.distributed.checkpoint.state_dict.", "torch.distributed.checkpoint."),
    ("torch.autograd.anomaly_mode.", "torch.autograd."),
    ("torch.utils.tensorboard.writer.", "torch.utils.tensorboard."),
)
PRINT = "print"
"""The only function of Python itself whose calls matter."""
ENVIRONMENT = ("os.environ", "os.getenv", "os.environ.get", "environ.get")

CONFIGS = frozenset(
    {
        *("args", "arg", "cfg", "config", "configs", "conf", "opt", "opts", "option", "options"),
        *("hparams", "params", "flags", "hp", "settings", "namespace", "a", "o", "c", "p", "hps"),
    }
)
"""Words of variables that hold the options of a run."""

Marks = Mapping[str, Sequence[ast.expr]]
NOTHING: Marks = {}


class Names:
    """What the names of a module mean."""

    def __init__(self, module: Module, marks: Marks = NOTHING) -> None:
        """``marks``: what attributes of the script's objects are, where they tell the rank."""
        self.marks = marks
        self._known = {PRINT: PRINT}
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._known[node.name] = f"{module.name}.{node.name}"
        for statement in module.nodes.of(ast.Import, ast.ImportFrom):
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    top = alias.name.partition(".")[0]
                    self._known[alias.asname or top] = alias.name if alias.asname else top
            else:
                base = base_of(statement, module)
                for alias in statement.names:
                    name = f"{base}.{alias.name}".lstrip(".")
                    self._known[alias.asname or alias.name] = name

    @property
    def all(self) -> Collection[str]:
        """The names that the module imports or defines at its top level."""
        return self._known.keys()

    def of(self, node: ast.AST) -> str:
        """The full name of an expression; ``.attribute`` of an object, empty where it has none."""
        if isinstance(node, ast.Name):
            return moved(self._known.get(node.id, ""))
        if isinstance(node, ast.Attribute):
            base = self.of(node.value)
            known = base and not base.startswith(".")
            return moved(f"{base}.{node.attr}") if known else f".{node.attr}"
        return ""


@lru_cache(maxsize=10_000)
def moved(name: str) -> str:
    """The shorter name under which torch offers the same."""
    for defined, offered in MOVED:
        if name.startswith(defined):
            return offered + name[len(defined) :]
    return name


def variable(node: ast.AST) -> str:
    """A variable or an attribute as the source writes it; empty: it is another expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = variable(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def source(node: ast.AST) -> str:
    """The source of an expression or a statement in one line; empty: it is nested too deeply."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


@lru_cache(maxsize=10_000)
def words(name: str) -> frozenset[str]:
    """The words of a name, in lower case: ``isMainProcess`` has is, main and process."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))
