"""The processes of a run do not form a process group, so each trains alone or fails.

torchrun, accelerate and others set RANK, WORLD_SIZE and MASTER_ADDR for each process. Without
them, as under plain Python, a distributed script fails at its first collective. A script that
ignores them trains the same model in each process, on the same data, and exchanges nothing.

Symptoms: "environment variable RANK expected, but not set", "Default process group has not been
initialized", or N processes that each take as long as one.

To fix it, start the script with torchrun, and let it join the process group and wrap its model.
"""

# Above 150 lines: a recorded run, a log, a launch line, and the source.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import log_events
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.local_ranks import OF_TASKS
from ddoctor.analysis.script_plan import OF_LIGHTNING
from ddoctor.analysis.script_source import WRAPPERS, is_plain, shown
from ddoctor.analysis.versions import version
from ddoctor.evidence.known_software import within
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Software
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = (
    "duplicate-data-across-ranks",
    "replicas-diverged",
    "dead-rank",
    "first-failure-masked",
    "script-error",
)

FEWEST_STEPS = 10
# torch/distributed/rendezvous.py, _env_rendezvous_handler.
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK")
OWN_RANK = ("rank", "world_size", "store", "init_method", "**")
"""Arguments of init_process_group that replace them."""
STARTS_RANKS = re.compile(r"multiprocessing\.|notebook_launcher|debug_launcher")
STARTERS = ("srun", "sbatch", "mpirun", "mpiexec")
AGENTS = ("torchrun", "torch.distributed.launch", "accelerate")
"""Launchers that start the ranks of one host, and wait for the others."""


def alone(run: TrainingRun, steps: Steps) -> Iterator[Finding]:
    count = len(run.ranks)
    # The script's own process group, of which a rank without one counts as the only member.
    if run.world != 1 or count < 2 or steps.count < FEWEST_STEPS:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        because=(
            f"{count} processes train, and none has joined a process group: each trains its own "
            "model, unless another library such as Horovod exchanges their gradients"
        ),
        evidence=(Observation(name="ranks of the process group", value=run.world, expected=count),),
        fixes=(
            Fix.python(
                summary="join the process group, and wrap the model",
                paste=(
                    "torch.distributed.init_process_group()\n"
                    "model = DistributedDataParallel(model)\n"
                    f'# Lightning: Trainer(devices={count}, strategy="ddp")'
                ),
            ),
        ),
    )


def in_a_launch(launch: Launch) -> Iterator[Finding]:
    """accelerate starts one process where its file says that nothing is distributed."""
    kind, ranks = launch.get("strategy"), launch.get("ranks")
    if kind is None or ranks is None or kind.value != "none" or launch.on("multi-gpu"):
        return
    if (ranks.number or 1) > 1:
        yield Finding(
            # A template for one GPU may keep the number of another one.
            severity=Severity.NOTE if ranks.file == kind.file else Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{ranks.value} processes are asked for ({ranks.at}), but accelerate starts "
            f"one where distributed_type is NO ({kind.at})",
            evidence=(
                Observation(name="distributed_type", value="NO", source=kind.at),
                Observation(name="processes", value=ranks.value, source=ranks.at),
            ),
            fixes=(
                Fix(
                    summary="say that it is distributed",
                    paste="distributed_type: MULTI_GPU  # or accelerate launch --multi_gpu …",
                ),
            ),
        )


def of_an_old_accelerate(launch: Launch, software: Software | None) -> Iterator[Finding]:
    """Before 0.20, accelerate started one process, whatever --num_processes said."""
    installed, ranks = version("accelerate", launch, software), launch.get("ranks")
    chosen = launch.get("strategy", "multi-gpu", "accelerate.use_fsdp", "accelerate.use_deepspeed")
    if installed is None or launch.launcher != "accelerate" or chosen is not None:
        return
    if within(installed.value, "<0.20") and ranks is not None and (ranks.number or 1) > 1:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"accelerate {installed.value} ({installed.at}) starts one process unless "
            f"--multi_gpu is given, and {ranks.value} are asked for ({ranks.at})",
            # accelerate/commands/launch.py of 0.19 and 0.20, _validate_launch_command.
            evidence=(Observation(name="accelerate", value=installed.value, expected=">=0.20"),),
            fixes=(
                Fix(
                    summary="say that it is distributed, or use a newer accelerate",
                    paste=f"accelerate launch --multi_gpu --num_processes {ranks.value} …",
                ),
            ),
        )


def once_in_a_batch_script(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Slurm runs a batch script on the first node alone; only srun reaches the others.

    Source: slurm.schedmd.com/sbatch.html, "the batch script is run on the first allocated node".
    """
    launch = plan.launch
    if _runs_once(launch) and launch.launcher == "python":
        asked, start = _other_tasks(launch, script), "srun python"
        waits = "nothing starts the other tasks of the job"
    elif _runs_once(launch) and launch.launcher in AGENTS and (launch.hosts or 1) > 1:
        asked, start = launch.get("nodes"), f"srun --ntasks-per-node 1 {launch.launcher}"
        waits = f"it waits for {launch.hosts} hosts, and nothing starts it on the others"
    else:
        return
    if asked is not None and (asked.number or 1) > 1:
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"{launch.file}:{launch.line} starts {launch.launcher} once, on the first "
            f"node of the job ({asked.at}): {waits}",
            fixes=(Fix(summary="start it by srun, on all nodes", paste=f"{start} …"),),
        )


def _runs_once(launch: Launch) -> bool:
    return "sbatch" in launch.around and not {*launch.around} & {*STARTERS} - {"sbatch"}


def _other_tasks(launch: Launch, script: Script) -> Setting | None:
    """The tasks of a job whose script expects that something starts its ranks."""
    starts_ranks = any(STARTS_RANKS.search(one.name) for one in script.calls)
    # In a job of Slurm, Lightning waits for all of its tasks (plugins/environments/slurm.py).
    trainers = [one for one in script.of(*OF_LIGHTNING) if not {*one.keywords} & {"plugins", "**"}]
    joins = script.of("torch.distributed.init_process_group") or trainers
    return launch.get("tasks", "tasks-per-host") if joins and not starts_ranks else None


def one_process_for_several_gpus(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """transformers' Trainer then splits each batch by nn.DataParallel, without a word."""
    visible = len(plan.devices) if plan.devices is not None else plan.visible
    # What else a script imports may train, or not.
    own = (one for one in script.imports if one.at.file in script.files[:1])
    uses = next((one for one in own if one.framework == "Trainer"), None)
    alone = plan.launch.launcher == "python" and plan.ranks == 1
    if not alone or uses is None or visible is None or visible < 2:
        return
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"python starts one process on {visible} GPUs, for which the Trainer "
        f"({uses.at.place}) uses nn.DataParallel: it copies the model in each step",
        evidence=(Observation(name="visible GPUs", value=visible, expected=1),),
        fixes=(
            Fix(
                summary="start one process for each GPU",
                paste=f"torchrun --nproc-per-node={visible} {plan.launch.script} …",
                caution="the effective batch stays; per_device_train_batch_size is then one GPU's",
            ),
        ),
    )


def gpus_for_one_process(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """One process gets several GPUs, and the script trains on one in each process."""
    launch, granted = plan.launch, plan.gpus_per_host
    chosen = launch.get("env.CUDA_VISIBLE_DEVICES", "devices")
    count, at = len(plan.devices or ()), chosen
    if chosen is None and granted is not None:
        count, at = granted.number or 0, granted
    gets = "one process gets"
    if chosen is None and granted is None:
        told = next(filter(_counts_gpus, launch.settings), None)
        count, at = (told.number or 0 if told is not None else 0), told
        gets = "python starts one process, and the options count"
    by_job = launch.around[-2:-1] == ("sbatch",) and "srun" not in launch.around
    # Each pod of Kubernetes runs the command once.
    in_pods = launch.get("kind") is not None and plan.each == 1 and not launch.around
    alone = in_pods or (plan.ranks == 1 and (by_job or not {*launch.around} & {*STARTERS}))
    starts_ranks = any(STARTS_RANKS.search(one.name) for one in script.calls)
    spread = any("device_map" in one.keywords for one in script.calls)
    if launch.launcher != "python" or not alone or count < 2 or starts_ranks or script.unseen:
        return
    if _runs_once(launch) and (launch.number("tasks-per-host") or launch.number("tasks") or 1) > 1:
        return  # its other tasks are for the other GPUs
    for one in script.of(*WRAPPERS, *(() if spread else ("accelerate.Accelerator",)))[:1]:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{gets} {count} GPUs ({at.at if at is not None else ''}); the "
            f"script ({shown(one.at)}) trains on one GPU in each process: the others stay idle",
            fixes=(
                Fix(
                    summary="start one process for each GPU",
                    paste=f"torchrun --nproc-per-node={count} {launch.script} …",
                ),
            ),
        )


def _counts_gpus(one: Setting) -> bool:
    """Whether an option of the script, set in a file or on the line, is its number of GPUs."""
    name = one.name.rpartition(".")[2].replace("-", "_")
    return one.name.startswith("arg.") and name in GPUS and not one.file.endswith(".py")


def started_by_python(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A script that reads its rank from the environment, which plain Python does not set."""
    launch = plan.launch
    named = launch.get("kind", "container", *(f"env.{name}" for name in VARIABLES))
    alone = launch.launcher == "python" and plan.ranks == 1 and not {*launch.around} & {*STARTERS}
    starts_ranks = any("multiprocessing." in one.name for one in script.calls)
    sets = any(one.name in (f"os.environ[{name}]" for name in VARIABLES) for one in script.settings)
    if not alone or named is not None or starts_ranks or sets or script.unseen:
        return
    for one in script.of("torch.distributed.init_process_group"):
        if one.always and not {*one.keywords} & {*OWN_RANK} and len(one.arguments) < 2:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} reads RANK, WORLD_SIZE and MASTER_ADDR from the "
                "environment, and python sets none of them",
                fixes=(
                    Fix(
                        summary="start it with a launcher, which sets them",
                        paste=f"torchrun --standalone --nproc-per-node=gpu {launch.script} …",
                        caution="none of this if the shell has exported them",
                    ),
                ),
            )
            return


GPUS = ("num_gpus", "n_gpus", "ngpus", "num_gpu", "gpus_per_node", "world_size", "num_processes")
"""What scripts call the option for the number of GPUs that they train on."""


def started_as_tasks(launch: Launch, script: Script) -> Iterator[Finding]:
    """Tasks of Slurm or MPI, whose script reads the variables of torchrun."""
    starter = launch.around[-1] if launch.around else ""
    # enroot sets them in containers of PyTorch (50-slurm-pytorch.sh).
    contained = any(".container" in one.name for one in launch.settings)
    own = [one for name in VARIABLES for one in (f"env.{name}", f"os.environ[{name}]")]
    names = {one.name for one in launch.settings} | {one.name for one in script.settings}
    sets = {one for one in names & {*own} if "MASTER_ADDR" not in one}
    alone = launch.launcher == "python" and starter in OF_TASKS and is_plain(script)
    if not alone or contained or sets or script.names_scheduler is not None:
        return
    for one in script.of("torch.distributed.init_process_group"):
        if one.always and not {*one.keywords} & {*OWN_RANK} and len(one.arguments) < 2:
            given = OF_TASKS[starter]
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} reads RANK and WORLD_SIZE from the environment, and "
                f"{starter} sets {given[0]} and {given[1]} instead",
                fixes=(
                    Fix.python(
                        summary="give each task its rank by these names",
                        paste="\n".join(
                            f'os.environ["{name}"] = os.environ["{of_task}"]'
                            for name, of_task in zip(
                                ("RANK", "WORLD_SIZE", "LOCAL_RANK"), given, strict=True
                            )
                        ),
                        caution="none of this if a prolog of the tasks sets them; MASTER_ADDR and "
                        "MASTER_PORT are needed, too",
                    ),
                ),
            )
            return


# An attribute of what the script's parser returns.
OPTION = re.compile(r"\w+\.(?P<name>[A-Za-z_]\w*)")
OFF = ("false", "none", "0", "")


def joins_by_an_option(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The script joins a process group only with an option that the command does not give."""
    joins = script.of("torch.distributed.init_process_group")
    launcher, ranks = plan.launch.launcher, plan.ranks or 0
    if launcher == "python" or ranks < 2 or len(joins) != 1 or not is_plain(script):
        return
    option = OPTION.fullmatch(joins[0].test)
    given = plan.launch.get(f"arg.{option['name']}") if option is not None else None
    if option is None or given is None or option["name"] in script.set_fields:
        return
    if given.value.lower() in OFF:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{launcher} starts {ranks} ranks, and {shown(joins[0].at)} runs only with "
            f"--{option['name']}, which is off ({given.at}): each rank trains alone",
            evidence=(Observation(name=option["name"], value=given.value, source=given.at),),
            fixes=(
                Fix(
                    summary="give the script its option",
                    paste=f"--{option['name'].replace('_', '-')}",
                    language="text",
                ),
            ),
        )


def each_rank_alone(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A launcher starts several ranks of a script that knows nothing of other ranks."""
    ranks, trains = plan.ranks, [one for one in script.loops if one.kind == "training"]
    exchanges = any(one.name.startswith("torch.distributed.") for one in script.calls)
    knows = script.imports or script.splits or script.names_device or script.unseen
    launcher = plan.launch.launcher
    if launcher == "python" or ranks is None or ranks < 2 or not trains:
        return
    if not exchanges and not knows:
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{launcher} starts {ranks} ranks, and {shown(trains[0].at)} trains "
            "in each of them alone: no line of the script joins a process group or wraps the model",
            evidence=(Observation(name="ranks", value=ranks, expected=1),),
            fixes=(
                Fix.python(
                    summary="join the process group, and wrap the model",
                    paste="torch.distributed.init_process_group()\n"
                    "model = torch.nn.parallel.DistributedDataParallel(model)\n"
                    "# and give the DataLoader a DistributedSampler",
                ),
            ),
        )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("rank-expected"):
        missing = "variable" in event.values
        yield log_events.finding(
            [event],
            "no launcher has set the variables of its rank"
            if missing
            else "it is used before init_process_group, or no launcher has started the script",
            Fix(
                summary="start it with a launcher",
                paste="torchrun --standalone --nproc-per-node=gpu train.py",
            ),
            confidence=Confidence.LIKELY if missing else Confidence.POSSIBLE,
        )


def in_the_source(script: Script) -> Iterator[Finding]:
    for one in script.of("torch.nn.DataParallel"):
        if not script.of(*WRAPPERS) and one.on_all_ranks and not script.unseen:
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} splits each batch over the GPUs of one process, and copies "
                    "the model to all of them in every step; torch recommends "
                    "DistributedDataParallel, also on one host"
                ),
                fixes=(
                    Fix.python(
                        summary="join a process group, wrap the model, and start it by torchrun",
                        paste=(
                            "local_rank = int(os.environ['LOCAL_RANK'])\n"
                            "torch.cuda.set_device(local_rank)\n"
                            "torch.distributed.init_process_group()\n"
                            f"{one.assigned or 'model'} = "
                            "torch.nn.parallel.DistributedDataParallel(\n"
                            f"    {one.argument('module', 0) or 'model'}, "
                            "device_ids=[local_rank]\n"
                            ")\n"
                            "# and give the DataLoader a DistributedSampler"
                        ),
                    ),
                ),
            )
            return
