"""Variables that are set where the job starts do not reach the other hosts.

mpirun, pdsh and ssh start processes on other hosts with the environment of a new login there.
DeepSpeed starts them by pdsh, and passes on only what NCCL, Python, UCX and MLflow read. Workers of
a Ray cluster have the environment in which ``ray start`` ran. Slurm passes all variables on, unless
``--export`` says otherwise. NCCL's settings, paths and tokens are then set on the first host only.

Symptoms: hosts behave differently: another network interface, "command not found", other debug
output; a hang in the first collective.

To fix it, name the variables: ``mpirun -x NAME``, ``srun --export=ALL``, ``.deepspeed_env``, or the
``env_vars`` of Ray's ``runtime_env``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.analysis.launch_plan import OF_RANKS, LaunchPlan
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

EXPLAINS = ("environment-drift",)

# deepspeed/launcher/runner.py, EXPORT_ENVS, and accelerator/cuda_accelerator.py, export_envs.
BY_DEEPSPEED = ("MLFLOW", "NCCL", "PYTHON", "MV2", "UCX")
"""Beginnings of the names of variables that DeepSpeed passes on."""
ENV_OF_DEEPSPEED = ".deepspeed_env"
# deepspeed/launcher/multinode_runner.py; those of Slurm and MPICH pass on the whole environment.
RUNNERS = ("pdsh", "openmpi")
NOT_PASSED, BESIDE = "not-passed.", "beside.not-passed."
JOINING = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""What a script under plain Python reads; torchrun sets it for its ranks."""
CHOSEN_BY_IT = "CUDA_VISIBLE_DEVICES"
"""DeepSpeed sets it on each host."""


def in_a_launch(plan: LaunchPlan) -> Iterator[Finding]:
    launch, variables = plan.launch, plan.variables
    if not variables:
        return
    exported = launch.get("srun.export")
    if exported is not None and "srun" in launch.around and exported.value != "ALL":
        names = exported.value.split(",")
        lost = [one for one in variables if one.name[4:] not in _named(names)]
        if "ALL" not in names and lost:
            yield _finding(
                lost, f"--export={exported.value} ({exported.at})", "srun --export=ALL …"
            )
    starts = "mpirun" in launch.around or "mpiexec" in launch.around
    if starts and launch.get("mpirun.hydra") is None:
        passed = _named([one.value for one in launch.all("mpirun.x")])
        lost = [one for one in variables if one.name[4:] not in passed]
        # Rank 0 alone writes to W&B, mostly on this host.
        lost = [one for one in lost if not one.name.startswith("env.WANDB_")]
        if lost and (launch.get("mpirun.host", "mpirun.hostfile") is not None):
            yield _finding(
                lost,
                "mpirun passes on only what -x names",
                f"mpirun {' '.join(f'-x {one.name[4:]}' for one in lost)} …",
            )


def by_deepspeed(plan: LaunchPlan) -> Iterator[Finding]:
    launch, runner = plan.launch, plan.launch.get("deepspeed.launcher")
    alone = (launch.hosts or 1) < 2 or launch.on("deepspeed.no_ssh")
    other = runner is not None and runner.value.lower() not in RUNNERS
    # Another file, or a starter that starts deepspeed on each host.
    elsewhere = launch.get("env.DS_ENV_FILE", "deepspeed.no_ssh") is not None
    if launch.launcher != "deepspeed" or alone or other or elsewhere or "srun" in launch.around:
        return
    passed = (*BY_DEEPSPEED, CHOSEN_BY_IT)
    lost = [
        one
        for one in plan.variables
        if one.file != ENV_OF_DEEPSPEED and not one.name[4:].startswith(passed)
    ]
    if lost:
        names = "|".join(one.name[4:] for one in lost)
        yield _finding(
            lost,
            "DeepSpeed passes on only variables whose names begin with "
            f"{', '.join(BY_DEEPSPEED)}, and those of {ENV_OF_DEEPSPEED}",
            f"env | grep -E '^({names})=' >> {ENV_OF_DEEPSPEED}  # where you start deepspeed",
        )


def by_ssh(plan: LaunchPlan) -> Iterator[Finding]:
    """Variables before ssh, pdsh and the like, which start with those of a new login."""
    launch = plan.launch
    of_ranks = (*OF_RANKS, *JOINING * (launch.launcher == "python"))
    last = {one.name: one for one in launch.settings if one.name.startswith(NOT_PASSED)}
    own = {name: one for name, one in last.items() if launch.get(_variable(name)) is None}
    # Those of the other hosts, which a loop of the same script starts.
    others = {one.name: one for one in launch.settings if one.name.startswith(BESIDE)}
    lost = [
        Setting(name=_variable(name), value=one.value, file=one.file, line=one.line)
        for name, one in (own or others).items()
        if _variable(name)[4:].startswith(of_ranks)
    ]
    program = launch.get("elsewhere", "beside.elsewhere")
    if lost and program is not None:
        line = " ".join(f"{one.name[4:]}={one.value}" for one in lost)
        yield _finding(
            lost,
            f"{program.value} ({program.at}) starts them with the variables of a new login",
            f'{program.value} … "export {line}; …"',
        )


def _variable(name: str) -> str:
    return f"env.{name.removeprefix(BESIDE).removeprefix(NOT_PASSED)}"


def by_ray(plan: LaunchPlan) -> Iterator[Finding]:
    launch, cluster = plan.launch, plan.launch.get("ray.address")
    if launch.launcher != "ray" or cluster is None or (launch.ranks or 1) < 2:
        return
    own = _of_its_line(launch, plan.variables)
    lost = [one for one in own if launch.get(f"ray.{one.name}") is None]
    if lost and launch.get("ray.env.") is None:
        rows = ", ".join(f'"{one.name[4:]}": "{one.value}"' for one in lost)
        yield _finding(
            lost,
            f"they are workers of a running Ray cluster ({cluster.at}), with the environment in "
            "which `ray start` ran",
            f'ray.init(runtime_env={{"env_vars": {{{rows}}}}})',
        )


def _of_its_line(launch: Launch, variables: Sequence[Setting]) -> list[Setting]:
    """Those before the program: what a script exports earlier may reach `ray start`, too."""
    return [one for one in variables if (one.file, one.line) == (launch.file, launch.line)]


def _named(texts: list[str]) -> set[str]:
    return {text.partition("=")[0] for text in texts}


def _finding(lost: list[Setting], why: str, paste: str) -> Finding:
    names = ", ".join(one.name[4:] for one in lost)
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=f"{names} ({lost[0].at}) would not reach the ranks on other hosts: {why}",
        evidence=tuple(
            Observation(name=one.name[4:], value=one.value, source=one.at) for one in lost
        ),
        fixes=(Fix(summary="pass them on", paste=paste),),
    )
