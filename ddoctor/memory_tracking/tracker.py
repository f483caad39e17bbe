"""torch's memory tracker, extended by a log of all that happens and memory outside of tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType
from torch.distributed._tools.mem_tracker import (
    MemTracker,
    _RefType,
    _State,
    _UpdateType,
    _WeakRefInfo,
)
from torch.distributed._tools.mod_tracker import ModTracker
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from ddoctor.memory_tracking import cuda, replacements
from ddoctor.memory_tracking.counting import WorkCounter
from ddoctor.memory_tracking.log import Entry
from ddoctor.memory_tracking.values import KnownValues

DEVICE = torch.ops.prim.device.default
VALUE = torch.ops.aten._local_scalar_dense.default
aten = torch.ops.aten


def _each_head(formula: Callable[..., int]) -> Callable[..., int]:
    """Return a formula of attention for any number of key heads; torch has that since 2.13.

    The kernels multiply each query head, also where several share their keys.
    """

    def count(*args: Any, **kwargs: Any) -> int:
        most = max(one.shape[1] for one in args[:3])
        heads = (
            torch.empty(one.shape[0], most, *one.shape[2:], device="meta")
            if isinstance(one, Tensor) and one.dim() == 4 and one.shape[1] < most
            else one
            for one in args
        )
        return formula(*heads, **kwargs)

    return count


FLASH, FLASH_BACKWARD = (
    _each_head(flop_registry[one])
    for one in (
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_backward,
    )
)
# CPU attention is a separate operator, for which torch has no formula; for the grouped product it
# has none at all.
FORMULAS = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention: FLASH,
    aten._scaled_dot_product_flash_attention_backward: FLASH_BACKWARD,
    aten._scaled_dot_product_flash_attention_for_cpu: FLASH,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: FLASH_BACKWARD,
    replacements.GROUPED: replacements.grouped_flops,
}


def on_gpu(func: Any, args: Sequence[Any]) -> int:
    """Return the bytes that a call needs on a GPU besides its outputs."""
    return cuda.own(func, args) + replacements.own(func, args)


class _Modules(ModTracker):
    """Tracks which modules are running."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._entered: dict[str, None] = {}

    @property
    def innermost(self) -> str:
        """Return the last entered running module: some never report the end of their gradients."""
        while self._entered:
            last = next(reversed(self._entered))
            if last in self.parents:
                return last
            del self._entered[last]
        return ""

    def _get_append_fn(self, w_mod: Any, name: str, is_bw: bool) -> Callable[..., None]:
        enter = super()._get_append_fn(w_mod, name, is_bw)  # type: ignore[no-untyped-call]

        def noted(*args: Any) -> None:
            self._entered.pop(name, None)
            self._entered[name] = None
            enter(*args)

        return noted

    def _fw_pre_hook(self, mod: nn.Module, input: Any) -> None:
        super()._fw_pre_hook(mod, ())  # type: ignore[no-untyped-call]
        parts = tree_leaves(input)
        learning = [one for one in parts if isinstance(one, Tensor) and one.requires_grad]
        if learning and not self.is_bw:
            # torch waits for the gradients of all of them, with hooks that refer to the nodes that
            # refer to them. So these would never be freed, nor would a leaf at their end, such as
            # the frozen embeddings under adapters, and its gradient.
            leave = self._post_bw_callbacks_to_enqueue.pop()
            register_multi_grad_hook(learning, leave, mode="any")


class _Peaks(MemTracker):  # type: ignore[no-untyped-call]
    """Tracks the memory at the peak of each phase, and each allocation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._modules = self._mod_tracker = _Modules()
        self.phase = ""
        """The current phase of the step, set by the caller."""
        self.log: list[Entry] = []
        """What happened so far."""
        self.flops = 0
        """FLOPs of all matrix products, convolutions and attention so far."""
        self.known: KnownValues | None = None
        """What is known of the values of tensors; None: nothing."""
        self.work: WorkCounter | None = None
        """Counts the operators; None: they are not counted."""
        self.own: Callable[[Any, Sequence[Any]], int] = on_gpu
        """Returns the bytes that a call of an operator needs besides its outputs."""
        self.seen = True
        """Whether what an operator makes is in memory: a fused kernel keeps it to itself."""
        self.logits: tuple[int, int] | None = None
        """Number of elements of the model's logits, and of those of one label; None: no logits."""
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._alike: set[int] = set()
        self._own = 0

    @property
    def kinds(self) -> Sequence[str]:
        """Return torch's names of the kinds of memory."""
        return [kind.value for kind in self._ref_class]

    def begin(self) -> None:
        """Begin a step: only the peaks of the last one count."""
        self.log.append(Entry("step"))

    def _track(self, reftype: _RefType, t: Tensor) -> None:
        super()._track(reftype, t)
        if self.logits is not None and t.dim() and (t.numel(), t.shape[-1]) == self.logits:
            info, _ = self._WINFO[t.untyped_storage()]
            number = self._numbers.get(id(info))
            if number is not None and number not in self._alike:
                self._alike.add(number)
                self.log.append(Entry("logits", number))

    def _update_snap(
        self, u_type: _UpdateType, winfo: _WeakRefInfo, *args: Any, **more: Any
    ) -> None:
        super()._update_snap(u_type, winfo, *args, **more)
        kind, size = winfo.reftype.value, winfo.mem_consumed
        number = self._numbers.get(id(winfo))
        if u_type is _UpdateType.ADD:
            number = self._numbers[id(winfo)] = self._count
            self._count += 1
            self.log.append(Entry("new", number, size, kind, self._modules.innermost))
        elif number is None:
            return
        elif u_type is _UpdateType.DEL:
            self._alike.discard(number)
            del self._numbers[id(winfo)]
            self.log.append(Entry("free", number))
        elif u_type is _UpdateType.REF:
            self.log.append(Entry("kind", number, 0, kind))
        else:
            self.log.append(Entry("size", number, size))

    def _update_peak_stats(self, peak_state: _State) -> None:
        """Skip the statistics of each module: they would make every operator visit all modules."""
        last = self.log[-1] if self.log else Entry("step")
        # Where nothing has changed, there is no new peak.
        if last.what != "operator" or last.kind != self.phase or last.size < self._own:
            module = self._modules.innermost
            self.log.append(Entry("operator", -1, self._own, self.phase, module))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # more than half of all calls
        if not self.seen:
            return func(*args, **(kwargs or {}))
        if func is VALUE and self.phase == "optimizer" and args[0].constant is None:
            # A step scales its update by norms, whatever they are: the memory is the same.
            return 1.0 if args[0].is_floating_point() else 1
        self._own = self.own(func, args)
        run = replacements.REPLACED.get(func, func)
        if self.known is not None and run is func:
            run = partial(self.known.run, func)
        try:
            made = super().__torch_dispatch__(run, types, args, kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._own = 0
        if made is NotImplemented:
            return made
        flops = 0
        if formula := FORMULAS.get(func._overloadpacket):
            flops = formula(*args, **(kwargs or {}), out_val=made)
            self.flops += flops
        if self.work is not None:
            self.work.count(self.phase, func, args, kwargs, made, flops)
        return made


class Tracker(_Peaks):  # type: ignore[no-untyped-call]
    """Tracks a model that each rank has whole."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, others: Iterable[Tensor | Optimizer]
    ) -> None:
        super().__init__()
        for parameter in model.parameters():
            # torch's tracker hooks all parameters, and a frozen one accepts no hook.
            if not parameter.requires_grad:
                nothing = RemovableHandle(OrderedDict())
                self._param_to_grad_hook_handles[parameter] = nothing, nothing
        self.track_external(model, optimizer, *others)

    def _pre_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        # A loss that the forward pass computes is freed by then.
        if module is not None:
            super()._pre_bw_hook(module, args)

    def _post_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        if module is not None:
            super()._post_bw_hook(module, args)


class ShardedTracker(_Peaks, FSDPMemTracker):  # type: ignore[no-untyped-call]
    """Tracks a model that FSDP2 has sharded."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, inputs: Iterable[Tensor]) -> None:
        super().__init__(model, optimizer)
        # Before the parameters: between two blocks' parameters and buffers stands one of neither.
        for buffer in model.buffers():
            self._update_and_maybe_create_winfos(buffer, _FSDPRefType.BUFFER)
        self.track_inputs(tuple(inputs))

    def _fsdp_param_group_post_backward(self, fsdp_mod: Any, original: Any) -> Any:
        noted = super()._fsdp_param_group_post_backward(fsdp_mod, original)

        def run(*args: Any, **kwargs: Any) -> None:
            # A block that did not run, such as of an encoder without images, has no gathered
            # parameters, which torch's tracker expects.
            group = fsdp_mod._get_fsdp_state()._fsdp_param_group
            ran = all(hasattr(one, "_unsharded_param") for one in group.fsdp_params)
            (noted if ran else original)(*args, **kwargs)

        return run
