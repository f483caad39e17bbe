"""The optimizers of a plan by name: what each keeps of a parameter on the GPU.

One table. Some are torch's own and run on fake tensors (``torch``); of the others, their states
follow from a parameter's shape, and their kernels update in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ddoctor.errors import unknown

Shape = Sequence[int]
Keeps = Callable[[Shape, int], Sequence[int]]
"""Returns bytes of each state of a parameter, from its shape and the bytes of one number."""
FLOAT = 4
# bitsandbytes/optim/optimizer.py: tensors with fewer numbers keep fp32 (min_8bit_size); each block
# of 256 of the others has a scale. Those with fewer than 1e5 are not paged (get_state_buffer).
LEAST_OF_8_BITS, BLOCK, LEAST_PAGED = 4096, 256, 100_000
# torchao/optim/adam.py (_new_buffer): in low bits if at least this many and whole blocks; blocks of
# 128 in adamw-4bit, of 256 in the others, each with a scale in fp32.
BLOCK_OF_4_BITS = 128
# nikhilvyas/SOAP, soap.py: no preconditioner of a larger dimension (max_precond_dim).
LARGEST_OF_SOAP = 10_000
# Of bitsandbytes' optimizers, the two that transformers names in another way, or not at all.
UNNAMED = {"ademamix_32bit": "ademamix", "adamw_32bit": ""}
# The side of a usual layer, for models of which only the number of parameters is known.
SIDE = 4096


def _alike(states: int, shape: Shape, size: int) -> Sequence[int]:
    """Return states of the parameter's own shape and dtype."""
    return [math.prod(shape) * size] * states


def _floats(states: int, shape: Shape, size: int) -> Sequence[int]:
    return [math.prod(shape) * FLOAT] * states


def _bitsandbytes(states: int, shape: Shape, size: int) -> Sequence[int]:
    numbers = math.prod(shape)
    if numbers < LEAST_OF_8_BITS:
        return _floats(states, shape, size)
    return [numbers, FLOAT * -(-numbers // BLOCK)] * states


def _paged(keeps: Keeps, shape: Shape, size: int) -> Sequence[int]:
    """Return what stays on the GPU: the driver moves pages to the host when the GPU is full."""
    return [] if math.prod(shape) >= LEAST_PAGED else keeps(shape, size)


def _torchao(block: int, bits: int, shape: Shape, size: int) -> Sequence[int]:
    numbers = math.prod(shape)
    if numbers < LEAST_OF_8_BITS or numbers % block:
        return _alike(2, shape, size)
    return [numbers * bits // 8, FLOAT * numbers // block] * 2


def _factored(shape: Shape, size: int) -> Sequence[int]:
    """Return a row and a column of each matrix; of a vector, a number each."""
    if len(shape) < 2:
        return _alike(1, shape, size)
    *others, height, width = shape
    return [math.prod(others) * height * size, math.prod(others) * width * size]


def _soap(shape: Shape, size: int) -> Sequence[int]:
    """Return Adam's states, and a square and its eigenvectors of each dimension."""
    sides = [side for side in shape if side <= LARGEST_OF_SOAP] if len(shape) > 1 else []
    return [*_alike(2, shape, size), *(FLOAT * side * side for side in sides for _ in range(2))]


def _shampoo(shape: Shape, size: int) -> Sequence[int]:
    """Return the square of each dimension and its inverse root, as torch_optimizer's Shampoo."""
    return [size * side * side for side in shape for _ in range(2)]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What an optimizer takes."""

    keeps: Keeps
    torch: str = ""
    """The class of torch.optim whose step runs on fake tensors; empty: it updates in place."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments."""
    on_cpu: bool = True
    """Whether its step can run on a CPU; kernels of 8 bits exist for CUDA only."""
    update: bool = False
    """Whether a step makes updates of all parameters at once, as large as these."""
    argument: str = ""
    """Its name in TrainingArguments (transformers/training_args.py, OptimizerNames)."""


def _torch(name: str, states: int, argument: str = "", **settings: Any) -> Kind:
    """Return a class of torch.optim as on CUDA, which updates all parameters at once (foreach)."""
    return Kind(
        torch=name,
        keeps=partial(_alike, states),
        settings={"foreach": True, **settings},
        update=name != "SGD",
        argument=argument,
    )


def _in_place(keeps: Keeps, argument: str = "", *, on_cpu: bool = False) -> Kind:
    return Kind(keeps=keeps, argument=argument, on_cpu=on_cpu)


def _of_bitsandbytes(name: str, states: int) -> Mapping[str, Kind]:
    """Return an optimizer of bitsandbytes in 8 and 32 bits, and both paged."""
    found = {}
    for bits, keeps in ((8, partial(_bitsandbytes, states)), (32, partial(_floats, states))):
        whole, paged = f"{name}_{bits}bit", f"paged_{name}_{bits}bit"
        found[whole] = _in_place(keeps, UNNAMED.get(whole, whole))
        found[paged] = _in_place(partial(_paged, keeps), paged)
    return found


ADAMW = _torch("AdamW", 2, "adamw_torch", lr=1e-4)
ADAMW_8BIT = _in_place(partial(_bitsandbytes, 2), "adamw_bnb_8bit")
# torch/optim/_adafactor.py: parameter by parameter (foreach is off by default).
ADAFACTOR = Kind(keeps=_factored, torch="Adafactor", settings={"lr": 1e-2}, argument="adafactor")
ADAMW_4BIT = _in_place(partial(_torchao, BLOCK_OF_4_BITS, 4), "adamw_torch_4bit")
TORCHAO_8BIT = _in_place(partial(_torchao, BLOCK, 8), "adamw_torch_8bit")

OPTIMIZERS: Mapping[str, Kind] = {
    "adamw": ADAMW,
    # States in fp32 whatever the weights' dtype: apex's and DeepSpeed's FusedAdam.
    "adamw-fp32": _in_place(partial(_floats, 2), on_cpu=True),
    "adamw-8bit": ADAMW_8BIT,
    "sgd": _torch("SGD", 1, "sgd", lr=0.1, momentum=0.9),
    "adafactor": ADAFACTOR,
    # torch.optim, without those that need a closure (LBFGS) or sparse gradients (SparseAdam).
    "adadelta": _torch("Adadelta", 2),
    "adagrad": _torch("Adagrad", 1, "adagrad"),
    "adam": _torch("Adam", 2),
    "adamax": _torch("Adamax", 2),
    "asgd": _torch("ASGD", 1),
    "nadam": _torch("NAdam", 2),
    "radam": _torch("RAdam", 2),
    "rmsprop": _torch("RMSprop", 1, "rmsprop"),
    "rprop": _torch("Rprop", 2),
    # torch/optim/_muon.py takes matrices only, so others are AdamW's.
    "muon": Kind(
        torch="Muon", keeps=lambda shape, size: _alike(1 if len(shape) == 2 else 2, shape, size)
    ),
    # The names of transformers (training_args.py).
    "adamw_torch": ADAMW,
    # transformers' own AdamW, until version 4.49: parameter by parameter.
    "adamw_hf": Kind(
        keeps=partial(_alike, 2), torch="AdamW", settings={"foreach": False, "lr": 1e-4}
    ),
    # torch/optim/adam.py, _fused_adam: one kernel updates in place.
    "adamw_torch_fused": _in_place(partial(_alike, 2), "adamw_torch_fused", on_cpu=True),
    "adamw_bnb_8bit": ADAMW_8BIT,
    **_of_bitsandbytes("adamw", 2),
    **_of_bitsandbytes("lion", 1),
    # bitsandbytes/optim/ademamix.py: a fast and a slow average of gradients, and one of squares.
    **_of_bitsandbytes("ademamix", 3),
    "rmsprop_bnb_8bit": _in_place(partial(_bitsandbytes, 1), "rmsprop_bnb_8bit"),
    # schedulefree/adamw_schedulefree.py and sgd_schedulefree.py: z, and the average of squares.
    "schedule_free_adamw": Kind(
        keeps=partial(_alike, 2), update=True, argument="schedule_free_adamw"
    ),
    "schedule_free_sgd": Kind(keeps=partial(_alike, 1), argument="schedule_free_sgd"),
    # torchao/optim/adam.py.
    "adamw_torch_4bit": ADAMW_4BIT,
    "adamw_torch_8bit": TORCHAO_8BIT,
    "adamw-4bit": ADAMW_4BIT,
    "adamw-fp8": _in_place(partial(_torchao, BLOCK, 8)),
    "soap": _in_place(_soap, on_cpu=True),
    "shampoo": _in_place(_shampoo, on_cpu=True),
}
USUAL = ("adamw", "adamw-fp32", "adamw-8bit", "sgd", "adafactor", "muon")


def named(name: str) -> str:
    """Return this name of the table.

    Raises:
        DoctorError: the table has no such name.
    """
    if name not in OPTIMIZERS:
        some = f"use one of {', '.join(USUAL)}, or a name of transformers' optim"
        raise unknown("optimizer", name, OPTIMIZERS, some)
    return name


def each(name: str, size: int) -> float:
    """Return bytes of states for each parameter, with ``size`` bytes, of a usual matrix."""
    return sum(OPTIMIZERS[name].keeps((SIDE, SIDE), size)) / SIDE**2
