"""The user's hooks of tensors: work of the script's own in the midst of a backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch.autograd import graph

from ddoctor.recorder import places
from ddoctor.recorder.calls import timed
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.tape import REST
from ddoctor.recorder.timeline import Timeline

_BACKWARD = graph._engine_run_backward.__code__


def install(timeline: Timeline) -> None:
    """Time the hooks of gradients as what they are, no part of the backward pass.

    Those of modules are left alone: they are stored with a model.
    """
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        _time(timeline, name)


def lead_to(frame: FrameType) -> bool:
    """Whether autograd called what led to this frame."""
    outer = frame.f_back
    while outer is not None and outer.f_code is not _BACKWARD:
        outer = outer.f_back
    return outer is not None


def _time(timeline: Timeline, name: str) -> None:
    original = getattr(torch.Tensor, name)

    @replaces(torch.Tensor, name)
    def register(tensor: Any, hook: Any) -> Any:
        code = None if torch.compiler.is_compiling() else _code(hook)
        if code is not None and places.of_user(code.co_filename):
            hook = timed(timeline, hook, REST)
        return original(tensor, hook)


def _code(hook: Callable[..., Any]) -> CodeType | None:
    while isinstance(hook, partial):
        hook = hook.func
    function = getattr(hook, "__func__", hook)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
