"""Files that launch a training as its plan recommends, with accelerate or torchrun."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddoctor.characters import tamed
from ddoctor.errors import DoctorError
from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.plan import GPUS_PER_HOST, Plan, PlanRow
from ddoctor.forecast import deepspeed_files
from ddoctor.forecast.optimizers import OPTIMIZERS

NAMES = ACCELERATE, SCRIPT, ARGUMENTS = "accelerate.yaml", "launch.sh", "arguments.json"
MIXED = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}
"""accelerate's names; without one ("no"), the layers compute in the weights' dtype."""

Settings = Mapping[str, str | int | bool]


def check_folder(path: Path, *, replace: bool) -> None:
    """Check for write access before the work starts.

    Raises:
        DoctorError: the folder cannot be written, or it has files and --force is missing.
    """
    existing = next(one for one in (path, *path.parents) if os.path.exists(one))
    if not existing.is_dir():
        raise DoctorError(f"cannot write into {path}: {existing} is not a folder")
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        raise DoctorError(f"cannot write into {path}: permission denied")
    if existing == path and not replace and any(path.iterdir()):
        raise DoctorError(
            f"{path} has files: name another folder, or replace {', '.join(NAMES)} in it with "
            "--force"
        )


def write(path: Path, plan: Plan) -> None:
    """Write the files for the plan's recommendation into this folder.

    Raises:
        DoctorError: it recommends nothing, or a file cannot be written.
    """
    try:
        found = texts(plan, path)
        path.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            with open(path / name, "w", encoding="utf-8", opener=without_waiting) as file:
                file.write(text)
    except OSError as error:
        raise DoctorError(f"cannot write {error.filename}: {error.strerror}") from error


def texts(plan: Plan, folder: Path = Path()) -> Mapping[str, str]:
    """Return each file's text by name, for the row that the plan recommends.

    ``folder``: theirs, as accelerate finds DeepSpeed's file from the folder of the launch.

    Raises:
        DoctorError: it recommends none, or GPUs that do not fill whole hosts.
    """
    if plan.chosen is None:
        raise DoctorError(
            "nothing fits, so there are no launch files: see the report for what to change"
        )
    row = plan.rows[plan.chosen]
    if row.gpus > GPUS_PER_HOST and row.gpus % GPUS_PER_HOST:
        raise DoctorError(
            f"no launch files for {row.gpus} GPUs, which do not fill whole hosts of "
            f"{GPUS_PER_HOST}: pass --gpus {row.gpus // GPUS_PER_HOST * GPUS_PER_HOST}"
        )
    made = {
        ACCELERATE: _accelerate(plan, row, folder),
        SCRIPT: _script(plan, row, folder),
        ARGUMENTS: _arguments(plan, row),
    }
    if _by_deepspeed(row):
        made[deepspeed_files.NAME] = deepspeed_files.configuration(plan, row)
    return {name: "".join(f"{_one_line(line)}\n" for line in lines) for name, lines in made.items()}


def _one_line(text: str) -> str:
    """Keep a name from a bundle within its comment: in the next line it would be a command."""
    return tamed(text.replace("\n", " "))


def _title(plan: Plan, row: PlanRow) -> Iterator[str]:
    yield f"# {row.title}, from `ddoctor plan`:"
    yield f"# {plan.model}, {plan.precision}, {plan.optimizer}, on {plan.device}"


def _by_deepspeed(row: PlanRow) -> bool:
    return row.strategy.startswith("zero")


def _accelerate(plan: Plan, row: PlanRow, folder: Path) -> Iterator[str]:
    yield from _title(plan, row)
    if plan.micro_batch is not None:
        turns = f", {row.accumulation} accumulation steps" if row.accumulation > 1 else ""
        batch = plan.micro_batch * row.gpus * row.accumulation
        samples = "1 sample" if plan.micro_batch == 1 else f"{plan.micro_batch} samples"
        yield f"# {samples} per GPU and micro-batch{turns}: {batch} in total"
    if plan.precision == "bf16":
        yield "# The script must load the weights in bf16: dtype=torch.bfloat16"
    if _selective(plan):
        yield f"# The script must checkpoint by itself: {plan.checkpointing}"
    yield "compute_environment: LOCAL_MACHINE"
    kind = {"one-gpu": "NO", "ddp": "MULTI_GPU"}.get(row.strategy, "FSDP")
    # YAML reads an unquoted no as false.
    yield f'distributed_type: "{"DEEPSPEED" if _by_deepspeed(row) else kind}"'
    if not _by_deepspeed(row):  # accelerate refuses what DeepSpeed's file says, too
        yield f'mixed_precision: "{_mixed(plan)}"'
    yield f"num_machines: {_hosts(row)}"
    yield f"num_processes: {row.gpus}"
    if _by_deepspeed(row):
        yield from deepspeed_files.for_accelerate(row, folder)
    if plan.without_compile is not None:
        yield "dynamo_config:"
        yield "  dynamo_backend: INDUCTOR"
        yield "  dynamo_use_regional_compilation: true"
    if row.strategy.startswith("fsdp"):
        yield "fsdp_config:"
        yield from (f"  {name}: {_plain(value)}" for name, value in _fsdp(plan, row).items())
        if not _blocks(plan):
            yield "  # Only transformers models name their blocks. Else name the block's class:"
            yield "  # fsdp_transformer_layer_cls_to_wrap: Block"
    if row.strategy == "fsdp-hybrid":
        yield "parallelism_config:"
        yield from (f"  {name}: {_plain(value)}" for name, value in _mesh(row).items())


def _script(plan: Plan, row: PlanRow, folder: Path) -> Iterator[str]:
    yield "#!/bin/sh"
    yield from _title(plan, row)
    yield "#"
    hosts = _hosts(row)
    if _by_deepspeed(row):
        yield f"# Run it where {folder / deepspeed_files.NAME} exists: accelerate looks there."
    if hosts == 1:
        yield "#   sh launch.sh train.py ARGUMENTS"
    else:
        yield f"# On each of {hosts} hosts, with --machine_rank 0 to {hosts - 1}:"
        yield "#   sh launch.sh --machine_rank 0 --main_process_ip HOST-0 train.py ARGUMENTS"
    yield f'accelerate launch --config_file "$(dirname "$0")/{ACCELERATE}" "$@"'
    yield ""
    yield "# The same with torchrun; Accelerator and Trainer read the exported variables:"
    yield from (f"# export {one}" for one in _exported(plan, row, folder))
    meeting = (
        f" --nnodes {hosts} --rdzv-backend c10d --rdzv-endpoint HOST-0:29400" if hosts > 1 else ""
    )
    yield f'# torchrun{meeting} --nproc-per-node {row.gpus // hosts} "$@"'


def _arguments(plan: Plan, row: PlanRow) -> Iterator[str]:
    """Yield arguments of transformers' TrainingArguments."""
    # AdamW's states are fp32 anyway, unless the weights are bf16.
    usual = plan.optimizer == "adamw-fp32" and plan.precision != "bf16"
    # The plan may come from a bundle, which may hold any name.
    optimizer = OPTIMIZERS.get("adamw" if usual else plan.optimizer)
    arguments = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": row.accumulation,
        # Trainer checkpoints every block or none.
        "gradient_checkpointing": None if _selective(plan) else plan.checkpointing == "every",
        "bf16": _mixed(plan) == "bf16",
        "fp16": _mixed(plan) == "fp16",
        "optim": optimizer.argument or None if optimizer else None,
    }
    known = {name: value for name, value in arguments.items() if value is not None}
    yield from json.dumps(known, indent=2).splitlines()


def _exported(plan: Plan, row: PlanRow, folder: Path) -> Iterator[str]:
    """Yield what `accelerate launch` sets for its ranks (accelerate/utils/launch.py)."""
    if _by_deepspeed(row):
        values = deepspeed_files.exported(row, folder)
        yield from (f"{name}={shlex.quote(value)}" for name, value in values.items())
        return
    yield f"ACCELERATE_MIXED_PRECISION={_mixed(plan)}"
    if plan.without_compile is not None:
        yield "ACCELERATE_DYNAMO_BACKEND=INDUCTOR ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true"
    if row.strategy.startswith("fsdp"):
        # Rank 0 alone loads the weights, as by default.
        yield "ACCELERATE_USE_FSDP=true FSDP_CPU_RAM_EFFICIENT_LOADING=true"
        for name, value in _fsdp(plan, row).items():
            yield f"{name.upper().replace('_LAYER_CLS', '_CLS')}={_plain(value)}"
    if row.strategy == "fsdp-hybrid":
        yield "ACCELERATE_USE_PARALLELISM_CONFIG=true"
        yield from (f"{name.upper()}={value}" for name, value in _mesh(row).items())


def _fsdp(plan: Plan, row: PlanRow) -> Settings:
    settings: dict[str, str | int | bool] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": row.strategy != "fsdp-gradients",
        # By size, FSDP2 would wrap the list of the blocks as a unit, which it refuses.
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    if row.strategy == "fsdp-offload":
        settings["fsdp_offload_params"] = True
    if names := _blocks(plan):
        settings["fsdp_transformer_layer_cls_to_wrap"] = names
    return settings


def _blocks(plan: Plan) -> str:
    """The classes of its blocks; a bundle may hold other words than names of classes."""
    return ",".join(filter(str.isidentifier, plan.blocks))


def _selective(plan: Plan) -> bool:
    return plan.checkpointing.startswith("selective")


def _mesh(row: PlanRow) -> Settings:
    return {
        "parallelism_config_dp_replicate_size": _hosts(row),
        "parallelism_config_dp_shard_size": GPUS_PER_HOST,
    }


def _mixed(plan: Plan) -> str:
    return MIXED.get(plan.precision, "no")


def _hosts(row: PlanRow) -> int:
    return max(1, row.gpus // GPUS_PER_HOST)


def _plain(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
