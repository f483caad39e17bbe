"""CUDA in forked processes, and in the functions that the workers of a DataLoader run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.arguments import LOADER
from ddoctor.script.calls import names_cuda
from ddoctor.script.names import variable
from ddoctor.script.program import Program
from ddoctor.script.scopes import Call, Scope

PACKAGES = ("multiprocessing", "torch.multiprocessing")
STARTS = ("Process", "Pool")
CONTEXTS = tuple(f"{package}.get_context" for package in PACKAGES)
CHOOSES = "set_start_method"
FORK = "fork"
DEFAULT = ""
"""The start method that nothing chooses: fork, on Linux and before Python 3.14."""
BEGINS = frozenset(
    f"torch.cuda.{name}"
    for name in (
        *("set_device", "init", "synchronize", "current_device", "mem_get_info"),
        *("get_device_name", "get_device_properties", "get_device_capability"),
    )
)
"""What calls ``torch.cuda._lazy_init``; ``is_available`` and ``device_count`` do not."""


@dataclass(frozen=True, eq=False)
class Fork:
    """A process that is forked after CUDA was used."""

    at: Call
    before: Call
    """What has used CUDA."""
    child: Call | None
    """What surely uses it in the child; None: the source shows nothing."""


@dataclass(frozen=True, eq=False)
class Collating:
    """A DataLoader whose batches a function of the script puts on the GPU."""

    loader: Call
    at: Call


def uses_cuda(call: Call) -> bool:
    """Whether it surely runs CUDA, or needs it for its result."""
    if call.name in BEGINS or (call.method == "cuda" and call.name.startswith(".")):
        return True
    given = [word.value for word in call.node.keywords if word.arg == "device"]
    if call.method == "to":
        given += call.node.args[:1]
    elif not call.name.startswith("torch."):
        return False
    return any(_is_cuda(one, call.scope) for one in given)


def _is_cuda(device: ast.expr, scope: Scope) -> bool:
    """Whether it is surely a GPU, also by the only value of a variable."""
    shown = scope.shown(variable(device)) if variable(device) else ()
    given = shown[0] if len(shown) == 1 else device
    made = isinstance(given, ast.Call) and scope.named(given.func) == "torch.device"
    return names_cuda(given.args[0] if made and given.args else given)  # type: ignore[attr-defined]


def forks(program: Program) -> Iterator[Fork]:
    """Processes that are surely forked, in a function that surely has used CUDA before."""
    default = _chosen(program)
    for call in program.calls:
        if program.always(call) and _method(call, default) == FORK:
            earlier = [one for one in call.scope.calls if one.node.lineno < call.node.lineno]
            used = (program.sure(one, uses_cuda) for one in earlier)
            before = next((one for one in used if one is not None), None)
            if before is not None:
                yield Fork(call, before, _in_the_child(call, program))


def _chosen(program: Program) -> str | None:
    """The start method of processes that name none; None: unknown."""
    given = {_first_text(call, "method") for call in program.calls if call.method == CHOOSES} or {
        FORK
    }
    return given.pop() if len(given) == 1 else None


def _method(call: Call, default: str | None) -> str | None:
    """How a call starts processes; None: it starts none, or it is unknown."""
    if call.name == "os.fork":
        return FORK
    if call.method not in STARTS:
        return None
    if any(word.arg in ("mp_context", "context") for word in call.node.keywords):
        return None
    if call.name in [f"{package}.{name}" for package in PACKAGES for name in STARTS]:
        return default
    made = _context(call)
    if made is None:
        return None
    chosen = _first_text(made, "method")
    return default if chosen == DEFAULT else chosen


def _context(call: Call) -> Call | None:
    """The call of ``get_context`` that makes the object of a method."""
    function = call.node.func
    on = function.value if isinstance(function, ast.Attribute) else None
    shown = call.scope.shown(call.on) if call.on else [on]
    made = shown[0] if len(shown) == 1 else None
    scope: Scope | None = call.scope
    while scope is not None:
        for one in scope.calls:
            if one.node is made and one.name in CONTEXTS:
                return one
        scope = scope.outer
    return None


def _first_text(call: Call, keyword: str) -> str | None:
    """The first argument, a text; empty: it is not given; None: it is no text."""
    given = [word.value for word in call.node.keywords if word.arg == keyword]
    first = (*call.node.args[:1], *given)
    if not first:
        return DEFAULT
    value = first[0].value if isinstance(first[0], ast.Constant) else None
    return value if isinstance(value, str) else None


def _in_the_child(call: Call, program: Program) -> Call | None:
    target = next((word.value for word in call.node.keywords if word.arg == "target"), None)
    run = program.objects.run(target, call.scope) if target is not None else None
    return _first(run, program) if run is not None else None


def _first(scope: Scope, program: Program) -> Call | None:
    found = (program.sure(one, uses_cuda) for one in scope.calls)
    return next((one for one in found if one is not None), None)


def collates_on_cuda(program: Program) -> Iterator[Collating]:
    """The loaders whose ``collate_fn`` puts batches on the GPU."""
    for loader in program.by_name.get(LOADER, ()):
        for word in loader.node.keywords:
            if word.arg == "collate_fn":
                run = program.objects.run(word.value, loader.scope)
                own = {*ast.walk(word.value)} if isinstance(word.value, ast.Lambda) else ()
                calls = [one for one in loader.scope.calls if one.node in own]
                inner = (one for one in calls if uses_cuda(one))
                found = _first(run, program) if run is not None else next(inner, None)
                if found is not None:
                    yield Collating(loader, found)
