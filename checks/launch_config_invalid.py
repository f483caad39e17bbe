"""The launch command or its configuration contradicts itself, the machine or the script.

A launch line and its files repeat each other: numbers of hosts and ranks, addresses, accumulation.
Where they differ, one silently wins, or the run ends at its start. A misspelt option ends it, too;
a host that meets the others at its own 127.0.0.1 waits for them until a timeout.

Symptoms: "unrecognized arguments", a hang in init_process_group, "You set `devices=4` in Lightning,
but the number of tasks per node configured in SLURM does not match".

To fix it, correct the line or the file that the finding names.
"""

# Above 150 lines: launch lines, lines of logs and exceptions show a wrong setting differently.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings, lightning_cli, lightning_devices, log_events
from ddoctor.analysis.accelerate_values import of_accelerate
from ddoctor.analysis.deepspeed_numbers import deepspeed_pairs
from ddoctor.analysis.gpu_lists import misfits
from ddoctor.analysis.kubernetes_mistakes import of_kubernetes
from ddoctor.analysis.kubernetes_pods import of_pods
from ddoctor.analysis.kubernetes_pods import without_gpus as in_pods
from ddoctor.analysis.launch_mistakes import mistakes
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.local_address import local_address
from ddoctor.analysis.meeting_place import local_in_the_script, misplaced
from ddoctor.analysis.mistake import shown as named
from ddoctor.analysis.rendezvous_mistakes import ENDPOINTS
from ddoctor.analysis.saved_weights import without_weights
from ddoctor.analysis.script_source import LOADER, shown, with_keywords
from ddoctor.analysis.slurm_gpus import idle, not_asked
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log, Messages
from ddoctor.evidence.network import Network
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")

# Launchers, before they start a rank.
LAUNCHERS = (
    *("torch/distributed/run.py", "torch/distributed/launch.py"),
    *("accelerate/commands/launch.py", "accelerate/utils/launch.py"),
    *("deepspeed/launcher/runner.py", "deepspeed/launcher/launch.py"),
)
# Where frameworks check their arguments: Megatron-LM, transformers, torchtitan, DeepSpeed.
VALIDATE = (
    *("validate_args", "parse_args", "parse_args_into_dataclasses", "__post_init__"),
    *("_validate", "validate", "_batch_assertion", "_do_sanity_check", "initialize_model_parallel"),
)
REFUSALS = ("AssertionError", "KeyError", "NotImplementedError", "TypeError", "ValueError")
DIVIDES = re.compile(
    r"(?i)\b(?:must|should|needs? to|has to|is not|not) (?:be )?(?:evenly )?divisible by"
)
# Raised for wrong settings only: Lightning, DeepSpeed, Hydra, OmegaConf.
OF_SETTINGS = (
    *("MisconfigurationException", "DeepSpeedConfigError", "ConfigCompositionException"),
    *(
        "OverrideParseException",
        "MissingMandatoryValue",
        "ConfigKeyError",
        "MissingConfigException",
    ),
)


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    for rule in (
        mistakes,
        local_address,
        misplaced,
        misfits,
        of_accelerate,
        of_kubernetes,
        of_pods,
    ):
        for mistake in rule(plan):
            yield mistake.finding()


def without_gpus(plan: LaunchPlan, script: Script | None) -> Iterator[Finding]:
    """A job of Slurm that asks for no GPU."""
    yield from not_asked(plan, script)


def in_pods_without_gpus(launch: Launch, script: Script) -> Iterator[Finding]:
    """Pods of Kubernetes that ask for no GPU."""
    for mistake in in_pods(launch, script):
        yield mistake.finding()


def with_idle_gpus(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Fewer tasks of Slurm than the job has GPUs."""
    yield from idle(plan, script)


def local_addresses(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The script lets the ranks of several hosts meet at a local address."""
    for mistake in local_in_the_script(plan, script):
        yield mistake.finding()


def batches_that_do_not_divide(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """accelerate splits each batch between the ranks, and refuses one that does not divide."""
    ranks, split = plan.ranks or 1, plan.split
    # Of several, it is not known which one gets a loader.
    several = len(script.of("accelerate.Accelerator")) > 1
    if ranks < 2 or split is None or not split.on or several:
        return
    for one in script.of(LOADER):
        text = one.argument("batch_size", 1)
        known = text is not None and (text.isdigit() or "." in text)
        size, given = plan.launch.written(text) if known else None, None
        if not size or size % ranks == 0:
            continue
        multiple = str(-(-size // ranks) * ranks)
        fix = Fix.python(
            summary="use a multiple of the ranks", paste=with_keywords(one, batch_size=multiple)
        )
        if text is not None and not text.isdigit() and (given := plan.launch.argument(text)):
            fix = Fix(summary=fix.summary, paste=f"{given.name[4:]} = {multiple}", language="text")
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"split_batches ({split.at}) divides the {size} samples "
            f"({given.at if given is not None else one.at.place}) of {shown(one.at)} by {ranks} "
            "ranks, which leaves a rest: accelerate raises an error",
            evidence=(Observation(name="samples in a batch", value=size),),
            fixes=(fix,),
        )
        return


def deepspeed_and_the_script(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A loop of the script's own counts with other numbers than DeepSpeed's file."""
    made = script.of("deepspeed.initialize")
    # One that reads the numbers of the file, or writes them, may make them agree.
    if len(made) != 1 or script.names_deepspeed_keys is not None or not _takes_a_file(made[0]):
        return
    for other, own in deepspeed_pairs(plan):
        if "accumulation" in other.name and script.accumulates is None:
            continue
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"{named(other.name)} is {other.value} for DeepSpeed ({other.at}), but the "
            f"script counts with {own.name[4:]} = {own.value} ({own.at}), and {shown(made[0].at)} "
            "takes the file",
            evidence=(
                Observation(name=named(other.name), value=other.value, source=other.at),
                Observation(name=own.name[4:], value=own.value, source=own.at),
            ),
            fixes=(
                Fix(
                    summary="write the same number in both",
                    paste=f'"{other.name.rpartition(".")[2]}": {own.value}',
                    language="text",
                ),
            ),
        )
        return


def _takes_a_file(call: SourceCall) -> bool:
    """Whether DeepSpeed gets its settings as a file has them: by path, or as they are loaded."""
    given = call.argument("config") or call.argument("config_params")
    path = given is None or re.fullmatch(r"""\w+\.\w+|(['"]).*\1""", given) is not None
    return path or call.origin("config") == ("json.load",)


def weights_that_are_not_saved(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The script saves by a method that the configuration does not let save."""
    yield from without_weights(plan, script)


def devices_of_lightning(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    yield from lightning_devices.under_srun(plan, script)
    yield from lightning_devices.nodes_under_srun(plan, script)
    yield from lightning_devices.under_torchrun(plan, script)


def devices_of_a_cli(plan: LaunchPlan) -> Iterator[Finding]:
    yield from lightning_cli.under_a_launcher(plan)


def a_cache_in_training(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """A cache for generation, which checkpointing cannot use (transformers/modeling_layers.py)."""
    checkpoints = [
        one
        for one in script.calls
        if one.name == ".gradient_checkpointing_enable"
        or one.argument("gradient_checkpointing") == "True"
    ]
    on = plan.launch.get("arg.gradient_checkpointing")
    by = checkpoints[0].at.place if checkpoints else on.at if on is not None and on.on else ""
    asked = [
        (one.at, with_keywords(one, use_cache="False"))
        for one in script.calls
        if one.name.startswith("transformers.") and one.argument("use_cache") == "True"
    ]
    asked += [(at, at.text.replace("True", "False")) for at in _caches_on(script)]
    for at, without in asked if by else ():
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.LIKELY,
            title="The model is asked for a cache that it cannot have in training",
            because=f"{shown(at)} asks for a cache of keys and values, which checkpoints "
            f"({by}) exclude: transformers warns and trains without it",
            fixes=(Fix.python(summary="ask for the cache only to generate", paste=without),),
        )
        return


def _caches_on(script: Script) -> Iterator[SourceLine]:
    """Where ``model.config.use_cache = True`` precedes a training loop of the script's own.

    A Trainer sets it by its own argument. Text that the script generates may use the cache, and so
    may what follows the training.
    """
    sets = [one for one in script.settings if one.name == ".use_cache"]
    trained = [one.at for one in script.loops if one.kind == "training"]
    by_trainer = any(one.framework == "Trainer" for one in script.imports)
    if by_trainer or script.of(".generate") or any(one.value != "True" for one in sets):
        return
    for one in sets:
        at, here = one.at, (one.at.file, one.at.function)
        after = [loop for loop in trained if (loop.file, loop.function) == here]
        if trained and not one.within and all(at.line < loop.line for loop in after):
            yield at


def at_another_host(plan: LaunchPlan, network: Network) -> Iterator[Finding]:
    """Host 0 of this command is this one, and the others are to meet at another's address."""
    launch = plan.launch
    meets, number = launch.get(*ENDPOINTS), launch.get("host-rank")
    if meets is None or number is None or number.number != 0 or (launch.hosts or 1) < 2:
        return
    # A file may be meant for another host; what is typed here is meant for this one.
    if number.origin != meets.origin or number.file or meets.file:
        return
    facing = network.facing()
    if facing is None or network.has(meets.value) is not False:
        return
    yield Finding(
        title="The address where the ranks meet is not one of this host",
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=f"the command makes this host the first ({named(number.name)} 0, {number.at}), "
        f"where the others find the store at {meets.value}, but {meets.value} is no address of it",
        evidence=(
            Observation(name="the ranks meet at", value=meets.value, source=meets.at),
            Observation(
                name="addresses of this host", value=", ".join(network.addresses), source="ip addr"
            ),
        ),
        fixes=(
            Fix(
                summary="if the command is for this host, give its own address on all hosts",
                paste=facing.addresses[0].address,
                language="text",
            ),
        ),
    )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("slurm-devices"):
        devices = event.values["devices"]
        yield log_events.finding(
            [event],
            f"Lightning under Slurm needs one task for each of its {devices} devices",
            Fix(
                summary="start as many tasks per node as there are devices, with srun",
                paste=f"#SBATCH --ntasks-per-node={devices}\n#SBATCH --gpus-per-node={devices}\n"
                "srun python train.py",
            ),
            confidence=Confidence.CERTAIN,
        )
    elif event := log.first("local-rank-argument"):
        yield log_events.finding(
            [event],
            "the launcher gives each rank its local rank as an option, which the script does not "
            "know, or spells otherwise",
            Fix.python(
                summary="accept both spellings, and prefer the variable of torchrun",
                paste='parser.add_argument("--local-rank", "--local_rank", type=int,\n'
                '    default=int(os.environ.get("LOCAL_RANK", 0)))',
            ),
        )
    elif event := log.first("port-denied"):
        yield log_events.finding(
            [event],
            f"the port {event.values['port']} is for the administrator alone: those below 1024 are",
            Fix(
                summary="meet at a higher port",
                paste="torchrun --rdzv-endpoint=HOST:29500 …\n"
                "accelerate launch --main_process_port 29500 …",
            ),
        )
    elif event := log.first("batch-size"):
        yield log_events.finding(
            [event],
            "the batch sizes do not fit the number of ranks",
            Fix(
                summary="make the global batch the product of the other numbers",
                paste="global batch = batch of one rank × accumulation steps × data-parallel ranks",
                language="text",
            ),
        )


def refused(run: TrainingRun, log: Log | None, messages: Messages | None) -> Iterator[Finding]:
    """What checks of settings raise before the training, with a text that no message explains."""
    rows = messages.of("launch-config-invalid") if messages is not None else ()
    if not run.only_told or (log is not None and any(log.of(row.name) for row in rows)):
        return
    for one in run.failures:
        inner = one.stack[-1] if one.stack else None
        checked = inner is not None and (
            inner.file.endswith(LAUNCHERS) or (inner.function in VALIDATE and not inner.of_user)
        )
        checked = checked or DIVIDES.search(one.message) is not None
        if one.exception in OF_SETTINGS or (checked and one.exception in REFUSALS):
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=f"{endings.who(one)} raised {one.words}{endings.at(inner)}: a setting is "
                "refused",
                where=Where.of([one]),
                fixes=(
                    Fix(
                        summary="correct the setting that the message names",
                        paste=endings.traceback(one),
                        language="text",
                    ),
                ),
            )
            return
