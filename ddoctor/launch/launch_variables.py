"""Variables that a launcher takes for its options, or that it overrides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace as with_fields

from ddoctor.evidence.launch import Setting
from ddoctor.launch.launchers import ACCELERATE, TORCH_LAUNCH, TORCHRUN, Launcher

OF_TORCHRUN = "PET_"
PRECISION = "ACCELERATE_MIXED_PRECISION"


def read(variables: Sequence[Setting], launcher: Launcher) -> Iterator[Setting]:
    """What they set, after the options and the file, which win.

    torchrun takes ``--nnodes`` from PET_NNODES (torch/distributed/argparse_util.py). accelerate
    sets the precision of the ranks whatever the variable says (accelerate/utils/launch.py).
    """
    if launcher is ACCELERATE and any(one.name == PRECISION for one in variables):
        default = f"the default of {launcher.title}"
        yield Setting(name="precision", value="no", origin=default)
    for one in reversed(variables):
        before, prefix, option = one.name.partition(OF_TORCHRUN)
        named = with_fields(one, origin=f"{one.name} ({one.origin})" if one.origin else "")
        name = launcher.means.get(option.lower()) if prefix and not before else None
        if launcher is ACCELERATE and one.name == PRECISION:
            yield with_fields(named, name="precision")
        elif launcher in (TORCHRUN, TORCH_LAUNCH) and name is not None:
            yield with_fields(named, name=name)
