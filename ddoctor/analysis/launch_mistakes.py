"""What contradicts itself within a launch line and its files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import DROPS, LaunchPlan
from ddoctor.analysis.mistake import Mistake, shown
from ddoctor.analysis.rendezvous_mistakes import meetings
from ddoctor.analysis.trainer_mistakes import of_trainer
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.models import Confidence, Fix, Severity

HYDRA = "Hydra"
COUNTS = ("hosts", "host-rank", "ranks", "ranks-per-host")
NO_NUMBERS = ("all", "auto", "gpu", "cpu", "xpu", "null")
COUNTED = {
    "torchrun": {
        "hosts": "--nnodes=2",
        "host-rank": "--node-rank=0  # on the first host, 1 on the second",
        "ranks-per-host": "--nproc-per-node=8",
    },
    "accelerate": {
        "hosts": "--num_machines 2",
        "host-rank": "--machine_rank 0  # on the first host, 1 on the second",
        "ranks": "--num_processes 16  # on all hosts",
    },
}
"""How a launcher is given each number."""
WORD = re.compile(r"[A-Za-z][\w ]*")
OF_LAUNCHERS = {
    "torchrun": re.compile(r"--(?:nproc[-_]per[-_]node|nnodes|node[-_]rank|rdzv[-_]\w+)"),
    "accelerate": re.compile(r"--(?:num_(?:processes|machines)|machine_rank|multi_gpu|use_fsdp)"),
    "deepspeed": re.compile(r"--(?:num_(?:gpus|nodes)|hostfile|include)"),
}
"""Options of a launcher that scripts hardly have."""
NONE = re.compile(r"(?!)")
STARTS = {"accelerate": "accelerate launch"}
OF_LEROBOT = re.compile(r"lerobot[-_]train|lerobot\.scripts")
LAST_PORT = 65_535
STAGE = ("zero-stage", "deepspeed.zero_optimization.stage", "deepspeed.zero_stage")
OFFLOADED = (
    "deepspeed.zero_optimization.offload_optimizer.device",
    "deepspeed.offload_optimizer_device",
)
"""In DeepSpeed's file, and in accelerate's."""


def mistakes(plan: LaunchPlan) -> Iterator[Mistake]:
    """All of them, the most severe first."""
    launch = plan.launch
    yield from _unread(launch)
    yield from _unfinished(launch)
    yield from _unknown(launch)
    yield from _no_numbers(launch)
    yield from _ports(launch)
    yield from meetings(launch)
    yield from _chosen_twice(launch)
    yield from _accumulation(plan)
    yield from _drops_all(plan)
    yield from of_trainer(plan)
    yield from _deepspeed(plan)
    yield from _offloads_without_zero(plan)
    yield from _resumed(plan)


def _unread(launch: Launch) -> Iterator[Mistake]:
    """Files without which the launch fails at once."""
    for one in launch.all("missing"):
        kind = "module" if launch.is_module else "file"
        path = one.value.rpartition(".")[0].replace(".", "/") if launch.is_module else one.value
        yield Mistake(
            because=f"there is no {kind} {one.value} ({one.at})",
            at=one,
            fix=Fix(summary="go to its folder, or correct its path", paste=f"ls -l {path}"),
            confidence=Confidence.LIKELY,
        )
    for one in launch.all("unreadable"):
        yield Mistake(
            because=one.value,
            at=one,
            fix=Fix(summary="correct the file, or the path to it", paste=" ".join(launch.command)),
        )


def _unfinished(launch: Launch) -> Iterator[Mistake]:
    """Lines that were copied from a guide, or cut by a comment."""
    for one in launch.all("broken-continuation"):
        yield Mistake(
            because=f"the command ends at {one.at}: a blank or a comment follows its backslash, so "
            f"the next line is a separate command: `{one.value}`",
            at=one,
            fix=Fix(
                summary="let the backslash be the last character of the line",
                paste=one.value.partition("\\")[0].rstrip() + " \\",
            ),
        )
    for one in launch.all("placeholder")[:1]:
        yield Mistake(
            because=f"`{one.value}` at {one.at} looks like a placeholder of a guide",
            at=one,
            fix=Fix(summary="put in the value of this run", paste=one.value),
            confidence=Confidence.LIKELY,
        )


def _unknown(launch: Launch) -> Iterator[Mistake]:
    for one in launch.unknown:
        setting = one.setting
        of_launcher = OF_LAUNCHERS.get(launch.launcher, NONE)
        if of_launcher.fullmatch(setting.name) and one.of.endswith(".py"):
            yield _behind_the_script(launch, setting, one.of)
            continue
        meant = f": did you mean {one.nearest}?" if one.nearest else ""
        ignores = ", and ignores it" if one.ignored else ""
        yield Mistake(
            because=f"{one.of} knows no {setting.name} ({setting.at}){ignores}{meant}",
            at=setting,
            fix=Fix(summary="write it as the installed version does", paste=one.nearest)
            if one.nearest
            else Fix(summary="see what it knows", paste=_help(one.of, launch.script)),
            confidence=Confidence.CERTAIN if one.nearest and not one.ignored else Confidence.LIKELY,
            severity=Severity.WARNING if one.ignored else Severity.ERROR,
        )


def _behind_the_script(launch: Launch, setting: Setting, script: str) -> Mistake:
    name, value = setting.name, "" if setting.value == "true" else f" {setting.value}"
    return Mistake(
        because=f"{name} ({setting.at}) is an option of {launch.launcher}, and stands behind the "
        f"script: {script} gets it, and knows no such option",
        at=setting,
        fix=Fix(
            summary="put it before the script",
            paste=f"{STARTS.get(launch.launcher, launch.launcher)} {name}{value} … {script}",
        ),
    )


def _no_numbers(launch: Launch) -> Iterator[Mistake]:
    """Values such as N or RANK, which a guide writes for a number."""
    for name in COUNTS:
        one = launch.get(name)
        if one is None or one in launch.unresolved or one.value in NO_NUMBERS:
            continue
        if WORD.fullmatch(one.value):
            written = COUNTED.get(launch.launcher, {}).get(name, f"{shown(name)}: 2")
            yield Mistake(
                because=f"{shown(name)} is {one.value!r} ({one.at}), which is no number",
                at=one,
                fix=Fix(summary="put in the number of this run", paste=written),
            )


STATIC = ("torchrun", "torch.distributed.launch")
"""Launchers that pass a port of 0 on to the ranks."""


def _ports(launch: Launch) -> Iterator[Mistake]:
    for one in (launch.get("main-port", "env.MASTER_PORT"), launch.get("endpoint")):
        port = one.value.rpartition(":")[2] if one is not None else ""
        if one is None or not port.isdigit() or 0 < int(port) <= LAST_PORT:
            continue
        # One host alone finds the port that the system chose, but for torchrun's --master-port.
        own = one.name == "main-port" and launch.launcher in STATIC
        static = own and launch.get("endpoint", "standalone") is None
        if int(port) or static or (launch.hosts or 1) > 1:
            others = "ranks" if (launch.hosts or 1) == 1 else "others"
            yield Mistake(
                because=f"the ranks would meet at port {port} ({one.at})"
                + (
                    f", and ports end at {LAST_PORT}"
                    if int(port)
                    else f": the first host then takes any free port, which the {others} do not "
                    "know"
                ),
                at=one,
                fix=Fix(summary="give a free port, the same on all hosts", paste="29500"),
            )


def _help(program: str, script: str) -> str:
    if program.startswith(HYDRA):
        return f"python {script} --cfg job  # prints the configuration; +key=value adds a key"
    return "accelerate config" if "file" in program else f"{program} --help"


def _chosen_twice(launch: Launch) -> Iterator[Mistake]:
    """DeepSpeed refuses two ways to choose GPUs; deepspeed/launcher/runner.py, main."""
    chosen = launch.get("deepspeed.include", "deepspeed.exclude")
    counts = (*launch.all("hosts"), *launch.all("ranks-per-host"))
    numbers = [one for one in counts if chosen is not None and one.at == chosen.at]
    if chosen is not None and numbers:
        option = shown(chosen.name)
        yield Mistake(
            because=f"--{option} {chosen.value} ({chosen.at}) chooses hosts and GPUs, and so does "
            "--num_nodes or --num_gpus: deepspeed takes one of them only",
            at=chosen,
            fix=Fix(
                summary="leave the numbers out", paste=f"deepspeed --{option} {chosen.value} …"
            ),
        )


def _accumulation(plan: LaunchPlan) -> Iterator[Mistake]:
    """The same number in two places: the launcher's is used by accelerate, the script's by it."""
    launch = plan.launch
    own = launch.get("accumulation")
    other = plan.get("arg.gradient_accumulation_steps", "deepspeed.gradient_accumulation_steps")
    numbers = (own and own.number, other and other.number)
    if own is None or other is None or None in numbers or own.number == other.number:
        return
    if "default" in other.origin or (own.number == 1 and not own.file):
        return
    made = plan.of_accelerator("gradient_accumulation_steps")
    counts = ""
    if not plan.by_deepspeed:
        counts = f". Without DeepSpeed, accelerate ignores that of the launch: {other.value} counts"
    elif made is not None and made.at == other.at:
        # accelerate/accelerator.py reads the launch's first, from the environment.
        counts = f". With DeepSpeed, that of the launch counts: {own.value}"
    key = "gradient_accumulation_steps"
    yield Mistake(
        because=f"gradient accumulation is {own.value} at {own.at} and {other.value} at {other.at}"
        f"{counts}",
        at=own,
        fix=Fix(
            summary="write the same number in both",
            paste=f"{key}: {other.value}" if own.file else f"--{key} {other.value}",
            language="yaml" if own.file else "sh",
        ),
        confidence=Confidence.LIKELY,
        severity=Severity.WARNING,
    )


def _drops_all(plan: LaunchPlan) -> Iterator[Mistake]:
    """Fewer samples than one batch of all ranks, where such a batch is dropped."""
    samples, micro, drops = plan.launch.get("samples"), plan.micro_batch, plan.launch.get(DROPS)
    if not samples or not micro or not drops or plan.dropped != samples.number:
        return
    yield Mistake(
        because=f"an epoch has no step: {samples.value} samples ({samples.at}) fill no batch of "
        f"{micro.value} ({micro.at}) on all ranks, and `drop_last` ({drops.at}) drops the rest",
        at=drops,
        fix=Fix(
            summary="keep the last batch, or lower the batch or the number of ranks",
            paste="drop_last=False",
        ),
        confidence=Confidence.LIKELY,
    )


def _deepspeed(plan: LaunchPlan) -> Iterator[Mistake]:
    """What DeepSpeed asserts at its start (deepspeed/runtime/config.py)."""
    launch, ranks = plan.launch, plan.ranks
    whole = launch.get("deepspeed.train_batch_size")
    micro = launch.get("deepspeed.train_micro_batch_size_per_gpu")
    steps = launch.get("deepspeed.gradient_accumulation_steps")
    if (
        whole is not None
        and micro is not None
        and steps is not None
        and ranks is not None
        and whole.number is not None
        and micro.number is not None
        and steps.number is not None
        and whole.number != micro.number * steps.number * ranks
    ):
        yield Mistake(
            because=f"train_batch_size is {whole.value} ({whole.at}), but a micro-batch of "
            f"{micro.value} × {steps.value} accumulation steps × {ranks} ranks is "
            f"{micro.number * steps.number * ranks}",
            at=whole,
            fix=Fix(
                summary="leave train_batch_size to DeepSpeed, or write the product",
                paste=f'"train_batch_size": {micro.number * steps.number * ranks}',
                language="text",
            ),
        )
    stage = plan.get(*STAGE)
    offload = plan.get(
        "deepspeed.zero_optimization.offload_param.device", "deepspeed.offload_param_device"
    )
    if stage is not None and offload is not None and stage.number is not None and stage.number < 3:
        yield Mistake(
            because=f"parameters are to be offloaded to {offload.value} ({offload.at}), which ZeRO "
            f"does in stage 3 only, and the stage is {stage.value} ({stage.at})",
            at=offload,
            fix=Fix(
                summary="use stage 3, or leave out offload_param",
                paste='"stage": 3',
                language="text",
            ),
            # The other stages ignore it.
            severity=Severity.NOTE,
        )


def _offloads_without_zero(plan: LaunchPlan) -> Iterator[Mistake]:
    """Offloading is for stages 1 to 3 (deepspeed.ai/docs/config-json, offload_optimizer)."""
    stage, offload = plan.get(*STAGE), plan.get(*OFFLOADED)
    wanted = offload is not None and offload.value in ("cpu", "nvme")
    if stage is not None and offload is not None and wanted and stage.number == 0:
        yield Mistake(
            because=f"the states of the optimizer are to be offloaded to {offload.value} "
            f"({offload.at}), which ZeRO does from stage 1 on, and the stage is 0 ({stage.at})",
            at=offload,
            fix=Fix(
                summary="use stage 2, or leave out offload_optimizer",
                paste='"stage": 2',
                language="text",
            ),
            confidence=Confidence.LIKELY,
            severity=Severity.WARNING,
        )


def _resumed(plan: LaunchPlan) -> Iterator[Mistake]:
    """LeRobot's checkpoints of an FSDP run have no state of the optimizer.

    Source: LeRobot's guide for several GPUs, FSDP.
    """
    resume = plan.launch.get("arg.resume")
    name = plan.launch.script.rpartition("/")[2]
    if resume is not None and resume.on and OF_LEROBOT.search(name) and "FSDP" in plan.strategy:
        yield Mistake(
            because=f"--resume ({resume.at}) is asked for, but LeRobot's checkpoints of an "
            f"{plan.strategy} run hold no state of the optimizer",
            at=resume,
            fix=Fix(
                summary="begin a new run from the saved weights",
                paste="--policy.path=outputs/train/…/checkpoints/last/pretrained_model",
            ),
            confidence=Confidence.LIKELY,
            severity=Severity.WARNING,
        )
