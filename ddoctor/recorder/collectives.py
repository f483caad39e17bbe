"""Collectives called from Python: seconds of the main thread in them, and the calling lines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ddoctor.recorder import places
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.outermost import tensors_among
from ddoctor.recorder.recorded import CallFacts
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.tape import (
    CALLS,
    COLLECTIVE,
    COUNT,
    DDP_BUFFERS,
    FIRST_FUNCTION,
    FORWARD,
    GROUP,
    GROUP_SIZE,
    OPERATION,
    OPERATIONS,
    PHASES,
    WAIT,
)
from ddoctor.recorder.timeline import Timeline


class Group(NamedTuple):
    """A process group, by numbers that all of its ranks compute alike."""

    ranks: float
    """Who is in it; 0: all ranks."""
    name: float
    """Which of the groups of these ranks it is; 0: the default one."""
    size: float
    """How many ranks are in it; 0: all."""


EVERYBODY = Group(0.0, 0.0, 0.0)
Grouping = Callable[[tuple[Any, ...], dict[str, Any]], Group | None]
"""The group that these arguments name."""

MOST_PLACES, MOST_STEPS = 200, 10_000
MOST_BEGUN = 1000
FUNCTIONAL = {
    "broadcast": "broadcast",
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_single": "all_gather_single",
    "all_gather_single_autograd": "all_gather_single",
    "all_gather_single_coalesced": "all_gather_single",
    "all_gather_tensor": "all_gather_into_tensor",
    "all_gather_tensor_autograd": "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_single_autograd": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "reduce_scatter_tensor_autograd": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "all_to_all_single": "all_to_all_single",
    "all_to_all_single_autograd": "all_to_all_single",
}
"""Functions of ``torch.distributed._functional_collectives``, which DTensor calls, in any of its
versions, and their operations."""


class CollectiveWatch:
    """Times every collective of ``torch.distributed`` that Python code calls."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._depth = 0
        self._called = 0
        self.places: dict[tuple[str, str], CallFacts] = {}
        self._groups: dict[int, Group] = {}
        self._asynchronous: WeakKeyDictionary[Any, tuple[int, Group]] = WeakKeyDictionary()
        self._begun: dict[int, tuple[int, Group]] = {}
        """Operation and group of what functional collectives have begun, by the address of its
        memory, which views share."""

    def install(self) -> None:
        """Replace the functions under every name by which a script can find them."""
        for number, name in enumerate(OPERATIONS[FIRST_FUNCTION:], FIRST_FUNCTION):
            original = getattr(distributed_c10d, name, None)
            if original is not None:
                timed = self._timed(original, number)
                for module in (distributed_c10d, dist):
                    if getattr(module, name, None) is original:
                        setattr(module, name, timed)
        wait = distributed_c10d.Work.wait
        timeline = self._timeline

        @replaces(distributed_c10d.Work, "wait")
        def timed_wait(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not timeline.here():
                return wait(this, *args, **kwargs)
            operation, group = self._asynchronous.pop(this, (WAIT, EVERYBODY))
            return self._inside(operation, group, wait, (this, *args), kwargs)

        self._install_in_ddp()

    def install_functional(self, functional: ModuleType) -> None:
        """Time the functional collectives of this module: a tensor is waited for at its first
        use."""
        names: Any = functional
        for name, operation in FUNCTIONAL.items():
            original = getattr(functional, name, None)
            if original is not None:
                place = list(signature(original).parameters).index("group")
                group = partial(self._functional_group, names, place)
                timed = self._timed(original, OPERATIONS.index(operation), group)
                setattr(functional, name, timed)
        wait = names.wait_tensor
        timeline = self._timeline

        @replaces(functional, "wait_tensor")
        def timed_wait(tensor: Any) -> Any:
            if torch.compiler.is_compiling() or self._depth or not timeline.here():
                return wait(tensor)
            # Again and again, say for each view of it: only the first time counts.
            begun = self._begun.pop(_address(tensor) or 0, None)
            return self._inside(*begun, wait, (tensor,), {}) if begun else wait(tensor)

    def _install_in_ddp(self) -> None:
        wrapper: Any = DistributedDataParallel
        sync, post = wrapper._sync_buffers, wrapper._post_forward
        timeline = self._timeline

        @replaces(wrapper, "_sync_buffers")
        def sync_buffers(this: Any) -> None:
            if torch.compiler.is_compiling() or self._depth or not timeline.here():
                sync(this)
                return
            self._inside(DDP_BUFFERS, EVERYBODY, sync, (this,), {})
            timeline.counts[COUNT["buffers"]] += self._last

        @wraps(post)
        def post_forward(this: Any, output: Any) -> Any:
            compiling = torch.compiler.is_compiling()
            if compiling or not this.find_unused_parameters or not timeline.here():
                return post(this, output)
            # A phase within the same phase, for its moments.
            began = timeline.enter(FORWARD)
            try:
                return post(this, output)
            finally:
                timeline.counts[COUNT["find_unused"]] += timeline.leave() - began

        timeline.swaps.put(wrapper, "_post_forward", post_forward)

    def _timed(
        self, original: Callable[..., Any], number: int, group_of: Grouping | None = None
    ) -> Callable[..., Any]:
        timeline = self._timeline
        group_of = group_of or self._group

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._depth or not timeline.here():
                return original(*args, **kwargs)
            group = group_of(args, kwargs) or EVERYBODY
            result = self._inside(number, group, original, args, kwargs)
            self._note(number, args, kwargs)
            if isinstance(result, distributed_c10d.Work):
                # It was only begun; whoever waits for it waits in this operation.
                self._asynchronous[result] = (number, group)
            elif result is not None:
                self._keep_begun(result, (number, group))
            return result

        return call

    def _inside(
        self,
        operation: int,
        group: Group,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        timeline = self._timeline
        self._called += 1
        timeline.head[CALLS] = self._called
        timeline.head[OPERATION] = operation
        _, timeline.head[GROUP], timeline.head[GROUP_SIZE] = group
        self._depth += 1
        depth = len(timeline.open)
        timeline.enter(COLLECTIVE)
        begin, mark = timeline.last, timeline.marked
        try:
            return original(*args, **kwargs)
        finally:
            timeline.unwind(depth)
            self._depth -= 1
            self._last = timeline.last - begin
            timeline.meeting(begin, self._last, group.ranks, operation, mark)

    _last = 0.0

    @harmless
    def _note(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame = sys._getframe(3)
        caller = places.caller(frame) or frame
        key = (OPERATIONS[number], places.shown(caller.f_code, caller.f_lineno))
        row = self.places.get(key)
        if row is None:
            if len(self.places) >= MOST_PLACES:
                return
            file = caller.f_code.co_filename
            direct = frame.f_code.co_filename == file and places.of_user(file)
            row = self.places[key] = CallFacts(operation=key[0], place=key[1], of_user=direct)
        row.within = PHASES[self._timeline.phase]
        tensors = tensors_among((*args, *kwargs.values()))
        size = sum(one.numel() * one.element_size() for one in tensors)
        done = self._timeline.done
        if row.steps and row.steps[-1][0] == done:
            _, calls, before, seconds = row.steps[-1]
            row.steps[-1] = (done, calls + 1, before + size, seconds + self._last)
        else:
            if len(row.steps) >= MOST_STEPS:
                # Of a long run the last ones are of interest.
                del row.steps[: MOST_STEPS // 2]
            row.steps.append((done, 1, size, self._last))

    @harmless
    def _keep_begun(self, result: Any, begun: tuple[int, Group]) -> None:
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            # AsyncCollectiveTensor, by its name: a module that comes later has it.
            if (address := _address(getattr(tensor, "elem", None))) is not None:
                if len(self._begun) >= MOST_BEGUN:
                    self._begun.clear()
                self._begun[address] = begun

    @harmless
    def _group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Group:
        group = kwargs.get("group") or next(
            (one for one in args if isinstance(one, dist.ProcessGroup)), None
        )
        return self._identity(group)

    @harmless
    def _functional_group(
        self, functional: Any, place: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Group:
        """The same where a mesh, one of its dimensions, or a name may stand for the group."""
        given = kwargs["group"] if "group" in kwargs else args[place]
        name = functional._resolve_group_name(given)
        c10d: Any = distributed_c10d
        return self._identity(c10d._resolve_process_group(name))

    def _identity(self, group: Any) -> Group:
        if group is None or group is dist.group.WORLD:
            return EVERYBODY
        this = id(group)
        if this not in self._groups:
            ranks = dist.get_process_group_ranks(group)
            everybody = len(ranks) == dist.get_world_size()
            who = 0.0 if everybody else float(crc32(str(ranks).encode()) + 1)
            name = float(crc32(group.group_name.encode()) + 1)
            self._groups[this] = Group(who, name, float(len(ranks)))
        return self._groups[this]


@harmless
def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
