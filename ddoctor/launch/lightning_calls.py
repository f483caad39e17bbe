"""The ranks that Lightning starts by itself, as a script under plain Python asks for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch import modules
from ddoctor.launch.option_source import named, parsed_number

PACKAGES = frozenset({"lightning", "pytorch_lightning", "lightning_fabric"})
ENVIRONMENTS = (
    ("lightning", "fabric/plugins/environments/torchelastic.py"),
    ("lightning_fabric", "plugins/environments/torchelastic.py"),
)
OTHER_DEVICES = ("cpu", "mps", "tpu")
MEANS = {
    "devices": "ranks-per-host",
    "num_nodes": "hosts",
    "precision": "precision",
    "strategy": "strategy",
}


def started(tree: ast.Module, name: str, known: Sequence[Setting]) -> Iterator[Setting]:
    """Ranks, hosts and precision, each as ``lightning.hosts``; nothing: it starts no ranks.

    Of ``Fabric``, only with ``launch``. ``known``: the options; a number that is neither a constant
    nor one of them is not known.
    """
    if not PACKAGES & nodes(tree).packages:
        return
    calls = nodes(tree).of(ast.Call)
    launches = any(named(one.func) == "launch" for one in calls)
    made = [one for one in calls if named(one.func) in ("Trainer", "Fabric")]
    if len(made) != 1 or (named(made[0].func) == "Fabric" and not launches):
        return
    given: Mapping[str | None, ast.expr] = {word.arg: word.value for word in made[0].keywords}
    if "devices" not in given or named(given.get("accelerator")) in OTHER_DEVICES:
        return
    for key, setting in MEANS.items():
        if key in given:
            value, line = given[key], given[key].lineno
            told = Setting(name=f"lightning.{setting}", value=_told(value), file=name, line=line)
            if (option := parsed_number(tree, value, known)) is not None:
                told = with_fields(option, name=told.name)
            if told.value or key in ("devices", "num_nodes"):
                yield told
    if refuses():
        yield Setting(name="refuses-other-ranks", value="true", origin="the installed Lightning")


def refuses() -> bool:
    """Whether the installed version compares its devices with the ranks that torchrun starts."""
    sources = [modules.installed(*one) for one in ENVIRONMENTS]
    found = [nodes(one.tree) for one in sources if one is not None]
    return bool(found) and all(
        any(one.name == "validate_settings" for one in every.of(ast.FunctionDef)) for every in found
    )


def _told(node: ast.expr) -> str:
    """A constant, or the number of devices in a list; empty: only the running script knows it."""
    if isinstance(node, ast.List | ast.Tuple):
        return str(len(node.elts))
    if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1":
        return "all"
    return str(node.value) if isinstance(node, ast.Constant) else ""
