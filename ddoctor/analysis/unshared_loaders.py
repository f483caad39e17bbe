"""DataLoaders that a framework would share out between the ranks, where the script does not let it.

Sources: ray/train/torch/train_loop_utils.py, prepare_data_loader; lightning/pytorch/trainer/
connectors/data_connector.py, _requires_distributed_sampler.
"""

from __future__ import annotations

import re

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.script_plan import OF_LIGHTNING
from ddoctor.analysis.script_source import EVALUATES, LOADER, PLAIN, evaluates
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall

BEFORE_SAMPLER = 3
"""Arguments of a DataLoader before its sampler."""
# Such as `Subset(data, range(rank, len(data), world))`.
OF_A_RANK = re.compile(r"\brank|world_size|replica", re.IGNORECASE)
OF_RAY = "ray.train.torch.TorchTrainer"
SHARES_OUT = ("prepare_data_loader", "get_dataset_shard", "set_epoch")
"""What gives each worker of Ray its part, or shows that something does."""
SWITCHES = ("use_distributed_sampler", "replace_sampler_ddp")
"""Of Lightning 2, and of earlier versions."""


def unshared(plan: LaunchPlan, script: Script) -> tuple[SourceCall, SourceCall] | None:
    """A loader that every rank reads in full, and the call that starts the ranks; None: neither."""
    framework, trainer = _by_lightning(script) or _by_ray(script) or ("", None)
    known = PLAIN | {framework}
    if trainer is None or (plan.ranks or 1) < 2 or script.unseen:
        return None
    if not {one.framework for one in script.imports} <= known or not _are_whole(script):
        return None
    loader = next((one for one in script.of(LOADER) if not evaluates(one)), None)
    return (loader, trainer) if loader is not None else None


def _by_ray(script: Script) -> tuple[str, SourceCall] | None:
    made = script.of(OF_RAY)
    trains = any(loop.kind == "training" for loop in script.loops)
    shared = any(one.name.rpartition(".")[2] in SHARES_OUT for one in script.calls)
    return ("Ray", made[0]) if len(made) == 1 and trains and not shared else None


def _by_lightning(script: Script) -> tuple[str, SourceCall] | None:
    made = [one for one in script.of(*OF_LIGHTNING) if one.name.endswith("Trainer")]
    off = [one for one in made if "False" in map(one.keywords.get, SWITCHES)]
    return ("Lightning", made[0]) if len(made) == 1 and off else None


def _are_whole(script: Script) -> bool:
    """Whether nothing in the source gives each rank its own samples."""
    training = [one for one in script.of(LOADER) if not evaluates(one)]
    splits = [one for one in script.splits if not EVALUATES.search(one.text.replace("_", " "))]
    parts = any(one.iterable or one.shards for one in script.datasets)
    hidden = any("**" in one.keywords for one in training)
    return not (splits or parts or hidden or any(map(shares, training)))


def shares(loader: SourceCall) -> bool:
    """Whether a DataLoader may share its samples out."""
    of_a_rank = OF_A_RANK.search(f"{loader.argument('dataset', 0)} {loader.held('dataset', 0)}")
    if loader.keywords.get("shuffle") == "True":
        # torch refuses a sampler next to it.
        return of_a_rank is not None
    more = loader.values.get("**", "sampler") if "**" in loader.keywords else ""
    named = {"sampler", "batch_sampler"} & {*loader.keywords}
    beyond = len(loader.arguments) > BEFORE_SAMPLER
    return bool(of_a_rank or named or "sampler" in more or beyond)
