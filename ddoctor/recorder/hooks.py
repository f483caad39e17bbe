"""The user's hooks of tensors and modules: work of the script's own in the midst of a pass.

A hook that returns a value takes part in the pass, such as one that clips gradients, and is none
of these.
"""

from __future__ import annotations

import dis
import linecache
from collections.abc import Callable
from functools import cache, partial, wraps
from types import CodeType
from typing import Any

import torch
from torch.autograd import graph
from torch.nn.modules import module
from torch.utils import hooks

from ddoctor.recorder import places
from ddoctor.recorder.calls import timed
from ddoctor.recorder.stacks import AnyFrame
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.tape import REST
from ddoctor.recorder.timeline import Timeline

_BACKWARD = graph._engine_run_backward.__code__
_HOOKS, _MODULES = hooks.__file__, module.__file__


def install(timeline: Timeline) -> None:
    """Time the hooks of gradients as what they are, no part of the backward pass.

    Those of modules are only sampled: they are stored with a model, and so are not to be replaced.
    """
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        _time(timeline, name)


def of_tensor(frame: AnyFrame) -> bool:
    """Whether autograd called what led to this frame."""
    outer = frame.f_back
    while outer is not None and outer.f_code is not _BACKWARD:
        outer = outer.f_back
    return outer is not None


def of_module(frame: AnyFrame) -> bool:
    """Whether a module called a hook of the user's that led to this frame."""
    called, hook, outer = frame, frame, frame.f_back
    while outer is not None and places.of_user(outer.f_code.co_filename):
        called, hook, outer = hook, outer, outer.f_back
    # A lambda returns what the function returns that it calls.
    named = called if hook.f_code.co_name == "<lambda>" else hook
    if outer is None or not _only_looks(named.f_code):
        return False
    file = outer.f_code.co_filename
    # The same function of torch calls ``forward``.
    return file == _HOOKS or (
        file == _MODULES and "hook(" in linecache.getline(file, outer.f_lineno)
    )


@cache
def _only_looks(hook: CodeType) -> bool:
    """Whether it returns None from everywhere."""
    last = None
    for one in dis.get_instructions(hook):
        none = last is not None and last.opname == "LOAD_CONST" and last.argval is None
        if one.opname == "RETURN_VALUE" and not none:
            return False
        if one.opname == "RETURN_CONST" and one.argval is not None:
            return False
        last = one
    return True


def _time(timeline: Timeline, name: str) -> None:
    original = getattr(torch.Tensor, name)

    @replaces(torch.Tensor, name)
    def register(tensor: Any, hook: Any) -> Any:
        code = None if torch.compiler.is_compiling() else _code(hook)
        if code is not None and places.of_user(code.co_filename):
            hook = _timed(timeline, hook)
        return original(tensor, hook)


def _timed(timeline: Timeline, hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, timed until it returns a value: then it takes part in the pass."""
    apart = timed(timeline, hook, REST)
    takes_part = False

    @wraps(hook)
    def call(*args: Any) -> Any:
        nonlocal takes_part
        if takes_part:
            return hook(*args)
        found = apart(*args)
        takes_part = found is not None
        return found

    return call


def _code(hook: Callable[..., Any]) -> CodeType | None:
    while isinstance(hook, partial):
        hook = hook.func
    function = getattr(hook, "__func__", hook)
    called = function if hasattr(function, "__code__") else vars(type(hook)).get("__call__")
    code = getattr(called, "__code__", None)
    return code if isinstance(code, CodeType) else None
