"""Several ranks use the same GPU, while other GPUs may be idle.

Each rank should use the GPU of its local rank. That fails if the launcher does not set LOCAL_RANK,
or sets the same CUDA_VISIBLE_DEVICES for every rank. It also fails if the script uses ``cuda:0`` on
every rank, takes RANK for a GPU on several hosts, or calls NCCL before ``torch.cuda.set_device``.
NCCL rejects two ranks on one GPU; without NCCL they share its memory and speed. Where Slurm shows
each rank one GPU, as with ``--gpus-per-task=1``, only ``cuda:0`` exists.

Symptoms: "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000"; ``nvidia-smi``
shows all processes on GPU 0; "invalid device ordinal" on all hosts but the first.

To fix it, call ``torch.cuda.set_device`` with LOCAL_RANK before ``init_process_group``.
"""

# Above 150 lines: joined ranks, a run, a log, and mistakes of the source.

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.local_ranks import OF_TASKS, by_global_rank, device_of
from ddoctor.analysis.script_source import is_plain, shown, trains, with_keywords
from ddoctor.analysis.slurm_gpus import hidden
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.joining import Joining
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

GLOBAL_RANK = {
    "torch.distributed.get_rank",
    *(f"os.environ[{name}]" for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")),
}
REFUSES = frozenset({"Trainer", "TRL", "accelerate"})
EXPLAINS = ("dead-rank", "uneven-gpu-memory", "first-failure-masked", "script-error")


def by_rank(joining: Joining, hosts: tuple[Gpus, ...]) -> Iterator[Finding]:
    by_host = {section.host: section for section in hosts}
    users: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in joining.ranks:
        section = by_host.get(one.host)
        gpu = device_of(one, section.gpus) if section is not None and one.came else None
        if gpu is not None:
            users[one.host, gpu.index].append(one.rank)
    for (host, index), ranks in users.items():
        if len(ranks) < 2:
            continue
        idle = len(by_host[host].gpus) - sum(1 for where, _ in users if where == host)
        settings = {one.visible_devices for one in joining.ranks if one.rank in ranks}
        seen = ", ".join(sorted(f"CUDA_VISIBLE_DEVICES={value}" for value in settings if value))
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=(
                f"{endings.ranks(ranks)} on {host} all use GPU {index}"
                + (f" ({seen})" if seen else "")
                + (f", and {idle} of its GPUs are idle" if idle else "")
            ),
            evidence=(
                Observation(
                    name=f"ranks on GPU {index}",
                    value=len(ranks),
                    expected=1,
                    source="NCCL allows one rank per GPU",
                ),
            ),
            where=Where(hosts=(host,), ranks=tuple(ranks), devices=(f"cuda:{index}",)),
            fixes=(_BY_LOCAL_RANK,),
        )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("duplicate-gpu"):
        yield log_events.finding(
            [event],
            f"ranks {event.values['one']} and {event.values['other']} use the same GPU",
            Fix.python(
                summary="give each rank the GPU of its local rank, before CUDA is first used",
                paste='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            ),
            confidence=Confidence.CERTAIN,
        )


def where_it_failed(run: TrainingRun) -> Iterator[Finding]:
    one = by_global_rank(run)
    if one is not None and one.place is not None:
        at = f"{one.place.file}:{one.place.line}"
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"rank {one.rank} takes the GPU of its number among all hosts at {at} "
                f"(`{one.place.text}`), and its host has no GPU of that number"
            ),
            evidence=(Observation(name="its exception", value=one.words, source=one.logged),),
            where=Where.of([one]),
            fixes=(_BY_LOCAL_RANK,),
            title="A rank takes its number among all hosts for that of a GPU",
        )


def by_the_global_rank(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """The source takes the number of the process among all hosts for a GPU of its host."""
    hosts = launch.hosts or 1 if launch is not None else 1
    outcome = f"the second of its {hosts} hosts" if hosts > 1 else "the second host of a run"
    for one in script.of("torch.cuda.set_device", "torch.device", ".to", ".cuda"):
        made = set(one.origins.get("0", ())) | set(one.origins.get("1", ()))
        made |= set(one.origins.get("device", ()))
        if made - {"'cuda'"} and made <= GLOBAL_RANK | {"'cuda'"}:
            yield Finding(
                severity=Severity.ERROR if hosts > 1 else Severity.NOTE,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} selects the GPU by the global rank: {outcome} has no "
                "GPU of that number",
                fixes=(_BY_LOCAL_RANK,),
            )
            return


def by_the_host(script: Script) -> Iterator[Finding]:
    """The source divides the rank by the GPUs of a host, which is the number of the host."""
    for one in script.of("torch.cuda.set_device", "torch.device"):
        texts = (*one.arguments, *one.values.values())
        # rank - n * (rank // n) is the remainder.
        if any(re.search(r"rank\w*\s*//", one) and not re.search(r"[-%]", one) for one in texts):
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} divides the rank by the GPUs of a host: that is the number "
                    "of the host, and the same for all its ranks; the remainder (%) is the GPU"
                ),
                fixes=(_BY_LOCAL_RANK,),
            )
            return


def on_one_gpu(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Every rank works on the GPU whose number the source has."""
    places = [
        one
        for one in script.of("torch.device", "torch.cuda.set_device", ".to", ".cuda")
        if _is_fixed(one) and one.on_all_ranks and "condition" not in one.within
    ]
    if (
        not places
        or not _share_a_view(plan, script)
        or not is_plain(script)
        or any(not _is_fixed(one) for one in script.of("torch.cuda.set_device"))
    ):
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"{shown(places[0].at)} names one GPU, and {plan.each} ranks of a host run this line: "
            "all of them use it, and NCCL allows one rank per GPU"
        ),
        fixes=(_BY_LOCAL_RANK,),
    )


def batches_on_one_gpu(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Each rank has its own GPU, and the training moves all batches to one."""
    own = any(not _is_fixed(one) for one in script.of("torch.cuda.set_device"))
    by_accelerate = bool(script.of(".prepare")) and is_plain(script, "accelerate")
    if not (by_accelerate or (own and is_plain(script))) or not _share_a_view(plan, script):
        return
    for one in script.of(".to", ".cuda"):
        if _is_fixed(one) and one.in_each_step and one.on_all_ranks:
            own_device = "accelerator.device" if by_accelerate else "device"
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} names one GPU, and {plan.each} ranks of a host run this line "
                    "in each step, although each rank has its own GPU"
                ),
                fixes=(
                    Fix.python(
                        summary="move the batch to the GPU of the rank",
                        paste=f"{one.on or 'inputs'}.to({own_device}, non_blocking=True)",
                    ),
                ),
            )
            return


def _share_a_view(plan: LaunchPlan, script: Script) -> bool:
    """Whether several ranks of a host surely see the same GPUs, under the same numbers."""
    shown_one = any("CUDA_VISIBLE_DEVICES" in one.name for one in script.settings)
    per_rank = any(one.name.endswith("CUDA_VISIBLE_DEVICES") for one in plan.launch.settings)
    return (plan.each or 0) > 1 and not (shown_one or per_rank or _has_own(plan))


SPREADS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of ``device_map`` by which one process divides a model among all GPUs that it sees."""
FOR_A_TASK = re.compile(r"For[A-Z]\w*\.from_pretrained")
"""Models with a head, unlike those that only embed texts."""
NOT_TRAINED = re.compile(r"ref|teacher|reward|judge|critic|embed|eval", re.IGNORECASE)


def over_all_gpus(plan: LaunchPlan, script: Script, run: TrainingRun | None) -> Iterator[Finding]:
    """Each rank divides its model among all GPUs of the host.

    Source: accelerate/accelerator.py, prepare_model: "You can't train a model that has been loaded
    with `device_map='auto'` in any distributed mode".
    """
    # What has run says itself what failed; without GPUs nothing does.
    ranks = plan.each or 0 if run is None else 0
    for one in script.calls if ranks > 1 and trains(script) else ():
        given = (one.keywords.get("device_map") or "").strip("'\"")
        named = NOT_TRAINED.search(f"{one.assigned} {one.at.function}")
        if not FOR_A_TASK.search(one.name) or given not in SPREADS or named:
            continue
        if not one.on_all_ranks or one.test:
            continue
        refused = any(each.framework in REFUSES for each in script.imports)
        yield Finding(
            title="Each rank divides its model among all GPUs, which the other ranks use as well",
            severity=Severity.ERROR if refused else Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"all {ranks} ranks of a host run {shown(one.at)}: each divides its copy "
            "among all GPUs that it sees"
            + (", and accelerate refuses to train such a model on several ranks" * refused),
            fixes=(
                Fix.python(
                    summary="put the whole model on the rank's own GPU",
                    paste=with_keywords(one, device_map='{"": int(os.environ["LOCAL_RANK"])}'),
                    caution="what does not fit one GPU needs FSDP or DeepSpeed",
                ),
                Fix(
                    summary="or let one process use all GPUs, one after another",
                    paste=f"python {plan.launch.script}",
                ),
            ),
        )
        return


FIXED_IDS = re.compile(r"""\[\s*(?:\d|["']cuda:\d["']|torch\.device\(["']cuda:\d["']\))\s*\]""")


def for_ddp(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """DDP is given the same GPU on all ranks, whose models are on their own ones.

    Source: torch/nn/parallel/distributed.py, __init__: ``device_ids`` must be the module's device.
    """
    shown_one = any("CUDA_VISIBLE_DEVICES" in one.name for one in script.settings)
    if (plan.each or 0) < 2 or shown_one or _has_own(plan) or not is_plain(script):
        return
    for one in script.of("torch.nn.parallel.DistributedDataParallel"):
        given = one.argument("device_ids", 1) or ""
        own = [call for call in script.of("torch.cuda.set_device") if not _is_fixed(call)]
        if own and FIXED_IDS.fullmatch(given) and one.on_all_ranks and not one.test:
            yield Finding(
                severity=Severity.ERROR,
                confidence=Confidence.LIKELY,
                because=(
                    f"{shown(one.at)} gives DDP the GPU {given} on all {plan.each} ranks of a "
                    f"host, and {shown(own[0].at)} gives each rank its own: DDP refuses a model "
                    "on another GPU"
                ),
                fixes=(Fix.python(summary="name the rank's GPU", paste=_with_own(one, own[0])),),
            )
            return


def _with_own(call: SourceCall, own: SourceCall) -> str:
    return with_keywords(call, device_ids=f"[{own.argument('device', 0) or 'local_rank'}]")


def on_a_hidden_gpu(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Slurm shows each rank one GPU, which has the number 0 there."""
    yield from hidden(plan, script)


def _is_fixed(one: SourceCall) -> bool:
    """Whether it names a GPU by a number that is written there."""
    given = one.arguments[0].strip("'\"") if one.arguments else ""
    if one.name in ("torch.cuda.set_device", ".cuda") and given.isdigit():
        return True
    return re.fullmatch(r"cuda:\d", given) is not None or (
        one.name == "torch.device" and given == "cuda" and one.arguments[1:2] == ("0",)
    )


def without_a_device(script: Script, launch: Launch | None) -> Iterator[Finding]:
    """The source uses NCCL and the default GPU, which is the first one for every rank."""
    plan = LaunchPlan(launch=launch) if launch is not None else None
    joins = [
        one
        for one in script.of("torch.distributed.init_process_group")
        if "nccl" in (one.argument("backend", 0) or "")
        or "'nccl'" in one.origin("backend", 0)
        or _option("backend", one.argument("backend", 0) or "", plan) == "nccl"
    ]
    placed = script.of(".cuda", ".to", "torch.device")
    uses = [one for one in placed if _takes_the_default(one, plan)]
    if not joins or not uses or script.names_device is not None or not is_plain(script):
        return
    if any(_chooses(one, plan) for one in placed) or (plan is not None and _has_own(plan)):
        return
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.LIKELY,
        because=(
            f"every rank uses GPU 0 at {shown(uses[0].at)}: no line of the script selects the GPU "
            f"of the local rank, and NCCL ({shown(joins[0].at)}) allows one rank per GPU"
        ),
        fixes=(_BY_LOCAL_RANK,),
    )


OF_OPTION = re.compile(r"\w+\.local_rank")
WITHOUT_OPTION = ("torchrun", "accelerate")


def by_an_option_that_nothing_gives(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The source selects the GPU by ``--local_rank``, which torchrun gives to no rank.

    Source: docs.pytorch.org/docs/stable/elastic/run.html, "Transitioning from
    torch.distributed.launch to torchrun".
    """
    option = plan.launch.get("arg.local_rank")
    by_source = option is not None and option.value == "0" and option.file.endswith(".py")
    uses = [
        one
        for one in script.of("torch.cuda.set_device", "torch.device")
        for at, text in enumerate(one.arguments)
        if OF_OPTION.fullmatch(one.values.get(str(at), text).partition(";")[0])
    ]
    if (
        plan.launch.launcher in WITHOUT_OPTION
        and (plan.each or 0) > 1
        and option is not None
        and by_source
        and uses
        and script.gives_local_rank is None
        and is_plain(script)
    ):
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(uses[0].at)} selects the GPU by --local_rank, which "
                f"{plan.launch.launcher} gives to no rank: it is 0 ({option.at}) on all "
                f"{plan.each} ranks of a host"
            ),
            fixes=(_BY_LOCAL_RANK,),
        )


def by_the_scheduler(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The source asks Slurm or MPI for the local rank, which is one for all ranks of a torchrun.

    Source: docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
    """
    asked = script.local_of_scheduler
    selects = any(not _is_fixed(one) for one in script.of("torch.cuda.set_device"))
    by_torchrun = plan.launch.launcher in WITHOUT_OPTION and (plan.each or 0) > 1
    known = script.local_of_torchrun or script.counts_gpus
    if asked is None or known is not None or not by_torchrun:
        return
    if selects and is_plain(script):
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(asked)} asks the scheduler for the local rank, and no line reads "
                f"LOCAL_RANK: {plan.launch.launcher} sets that alone, so all {plan.each} ranks of "
                "a host take the same GPU"
            ),
            fixes=(_BY_LOCAL_RANK,),
        )


LOCAL = ("env.LOCAL_RANK", "os.environ[LOCAL_RANK]")


def by_another_launcher(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Tasks of Slurm or MPI, whose script takes LOCAL_RANK or a default for the local rank."""
    launch, asked = plan.launch, script.local_of_torchrun
    starter = launch.around[-1] if launch.around else ""
    tasks = launch.launcher == "python" and starter in OF_TASKS and (plan.each or 0) > 1
    known = script.local_of_scheduler or script.counts_gpus
    names = {one.name for one in launch.settings} | {one.name for one in script.settings}
    sets = names & {*LOCAL}
    contained = any(".container" in one.name for one in launch.settings)
    if asked is None or known is not None or not tasks or sets or contained or _has_own(plan):
        return
    local = OF_TASKS[starter][-1]
    # What joins by the variables of torchrun alone has its own cause.
    if script.names_scheduler is not None and is_plain(script):
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(asked)} takes the local rank from LOCAL_RANK, and {starter} sets "
                f"{local} instead: all {plan.each} ranks of a host take the same GPU, "
                "or none starts"
            ),
            fixes=(
                Fix.python(
                    summary="take the local rank of the task",
                    paste=f'torch.cuda.set_device(int(os.environ["{local}"]))',
                    caution="none of this if a prolog of the tasks sets LOCAL_RANK",
                ),
            ),
        )


DEFAULTS = {"'cuda'", "'cpu'"}


def _takes_the_default(one: SourceCall, plan: LaunchPlan | None) -> bool:
    if len(one.arguments) != 1:
        return one.name == ".cuda" and not one.arguments and "device" not in one.keywords
    made = set(one.origin("", 0))
    by_option = _option("device", one.arguments[0], plan) == "cuda"
    return ("'cuda'" in made and made <= DEFAULTS) or by_option


def _chooses(one: SourceCall, plan: LaunchPlan | None) -> bool:
    """Whether it names a GPU that may be that of the rank."""
    if one.name == ".cuda":
        return bool(one.arguments) or "device" in one.keywords
    made = one.origin("", 0)
    known = {*DEFAULTS, "'meta'", "'mps'"}
    by_option = bool(one.arguments) and _option("device", one.arguments[0], plan) is not None
    return (
        one.name == "torch.device"
        and not (len(one.arguments) == 1 and {*made} <= known)
        and (not by_option)
    )


def _option(name: str, text: str, plan: LaunchPlan | None) -> str | None:
    """The value of an option that the source reads as ``args.device`` or ``cfg["device"]``."""
    if plan is None or not re.fullmatch(rf"\w.*(?:\.{name}|\[['\"]{name}['\"]\])", text):
        return None
    setting = plan.get(f"arg.{name}")
    return setting.value if setting is not None else None


def _has_own(plan: LaunchPlan) -> bool:
    """Whether each rank may see one GPU alone, or is alone on its host."""
    launch = plan.launch
    chosen = any(one.name.endswith("CUDA_VISIBLE_DEVICES") for one in launch.settings)
    bound = launch.get("srun.tres_bind", "srun.gpu_bind")
    granted = launch.get("gpus-per-task", "srun.ntasks_per_gpu")
    shared = bound is not None and bound.value.endswith("none")
    own = not shared and (granted is not None or bound is not None)
    return (chosen and plan.devices is None) or own or plan.each == 1


_BY_LOCAL_RANK = Fix.python(
    summary="use the GPU of the local rank, with all GPUs visible to every rank",
    paste=(
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
        "torch.cuda.set_device(device)\n"
        "torch.distributed.init_process_group(device_id=device)"
    ),
    caution="unset CUDA_VISIBLE_DEVICES if it is the same for all ranks",
)
