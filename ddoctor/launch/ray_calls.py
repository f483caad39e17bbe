"""The ranks that Ray Train starts, what a script gives to each, and the cluster that it joins."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.source_text import nodes
from ddoctor.launch.option_source import named, parsed_number


def started(tree: ast.Module, name: str, known: Sequence[Setting]) -> Iterator[Setting]:
    """Its workers as ``ray.ranks``, empty if not known, the values of its loop, and its cluster.

    ``ray.address`` is that of a cluster that runs already, and ``ray.env.NAME`` a variable that
    all workers get, with an empty name where the source does not show which ones.
    """
    modules = (node.module or "" for node in nodes(tree).of(ast.ImportFrom))
    if not any(one.startswith("ray.train") for one in modules):
        return
    for node in nodes(tree).of(ast.Call):
        of_ray = named(getattr(node.func, "value", None)) == "ray"
        yield from _joined(node, name) if of_ray and named(node.func) == "init" else ()
        for word in node.keywords:
            if word.arg == "worker_runtime_env":
                yield Setting(name="ray.env.", value="", file=name, line=word.value.lineno)
            if word.arg == "num_workers" and named(node.func) == "ScalingConfig":
                yield _workers(tree, word.value, name, known)
            elif word.arg == "train_loop_config" and isinstance(word.value, ast.Dict):
                pairs = zip(word.value.keys, word.value.values, strict=True)
                for key, one in pairs:
                    if isinstance(key, ast.Constant) and isinstance(one, ast.Constant):
                        yield Setting(
                            name=f"arg.{named(key)}",
                            value=str(one.value),
                            file=name,
                            line=one.lineno,
                        )


def _workers(tree: ast.Module, node: ast.expr, name: str, known: Sequence[Setting]) -> Setting:
    """The number that is written, or that an argument gives, such as ``args.workers``."""
    if (given := parsed_number(tree, node, known)) is not None:
        return with_fields(given, name="ray.ranks")
    value = ast.unparse(node) if isinstance(node, ast.Constant) else ""
    return Setting(name="ray.ranks", value=value, file=name, line=node.lineno)


def _joined(call: ast.Call, name: str) -> Iterator[Setting]:
    """The arguments of ``ray.init``; docs.ray.io, "Runtime Environments", ``env_vars``."""
    given = {word.arg or "": word.value for word in call.keywords}
    address = call.args[0] if call.args else given.get("address")
    if isinstance(address, ast.Constant) and address.value not in (None, "local"):
        yield Setting(name="ray.address", value=named(address), file=name, line=call.lineno)
    runtime = given.get("runtime_env") or given.get("")
    if runtime is None:
        return
    of_runtime = _keys(runtime)
    variables = _keys(of_runtime["env_vars"]) if "env_vars" in of_runtime else {}
    if not isinstance(runtime, ast.Dict) or "" in {**of_runtime, **variables}:
        variables[""] = runtime
    for key, value in variables.items():
        yield Setting(name=f"ray.env.{key}", value=named(value), file=name, line=value.lineno)


def _keys(node: ast.expr) -> dict[str, ast.expr]:
    """The values of a dictionary; those under an empty key may have any."""
    if not isinstance(node, ast.Dict):
        return {"": node}
    pairs = zip(node.keys, node.values, strict=True)
    return {named(key) if isinstance(key, ast.Constant) else "": value for key, value in pairs}
