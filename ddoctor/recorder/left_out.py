"""Names of the unused parameters that DDP only counts in its error."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from typing import Any

# torch/csrc/distributed/c10d/reducer.cpp; the names come with TORCH_DISTRIBUTED_DEBUG only.
NUMBERED = re.compile(r"Parameter indices which did not receive grad for rank (\d+): ([\d ]+)")
NAMED = "Parameters which did not receive grad for rank {rank}: {names}"


def named(message: str) -> str:
    """The message with a line of names in torch's own form, if they are known."""
    found = NUMBERED.search(message)
    if found is None or NAMED.partition("{")[0] in message:
        return message
    rank, numbers = found[1], [int(number) for number in found[2].split()]
    models = list(_wrapped())
    if len(models) != 1:
        return message
    names = [
        name
        for name, parameter in models[0].module.named_parameters()
        if parameter.requires_grad and name not in models[0].parameters_to_ignore
    ]
    if max(numbers) >= len(names):
        return message
    told = ", ".join(names[number] for number in numbers)
    return (
        f"{message[: found.start()]}{NAMED.format(rank=rank, names=told)}\n{found[0]}"
        + (message[found.end() :])
    )


def _wrapped() -> Iterator[Any]:
    """The models in DDP of this process."""
    parallel: Any = sys.modules.get("torch.nn.parallel")
    if parallel is not None:
        kind = parallel.DistributedDataParallel
        yield from (one for one in gc.get_objects() if issubclass(type(one), kind))
