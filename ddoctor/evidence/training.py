"""How a recorded training run ended on each rank, and how each rank used its host."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from statistics import median
from typing import ClassVar, Literal

from ddoctor.evidence.section import Part, Section
from ddoctor.evidence.steps import BETWEEN_RANKS, PHASES

# How gloo, NCCL and the store of torch.distributed tell a rank that another one is gone, or late.
ECHO = re.compile(
    r"(closed|reset) by peer|remote process exit|ncclRemoteError|broken pipe"
    r"|timed out waiting \d+ms for (recv|send)|watchdog caught collective operation timeout"
    r"|failed to pass monitoredbarrier|communicator was aborted"
    r"|did the remote server shutdown or crash|wait timeout after \d+ms",
    re.IGNORECASE,
)
# torch/autograd/graph.py: into the engine, which runs no Python while it waits.
ENGINE = "_engine_run_backward"

# The recorder was in the pass, or rested: it does not tell the wait at its end from the pass.
UNTIMED = ("backward", "rest")

# A ConnectionResetError is another matter: of a download, say.
OF_TORCH = ("RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError")

# Half of the 10 % from which on a slowdown counts: a fix need not cure all of it. Each turn is a
# mean over many steps and ranks, and all turns have to agree.
GAIN = 1.05

Outcome = Literal["stopped", "finished", "failed", "killed", "hung", "interrupted"]


class Frame(Part, frozen=True, kw_only=True):
    """One frame of a stack, the innermost last."""

    file: str
    line: int
    function: str
    text: str = ""
    of_user: bool = False
    """Whether it is the user's own code, and not a library's."""


class RankEnding(Part, frozen=True, kw_only=True):
    """How one rank ended."""

    rank: int
    host: str
    pid: int
    outcome: Outcome
    """stopped: by ddoctor, as asked; finished: the script came to its end; failed: it raised, or
    left with an exit code; killed: a signal ended it, and not ddoctor's; hung: it made no progress,
    and ddoctor ended it; interrupted: the user, or the launcher, asked for the end."""
    steps: int
    """Optimizer steps that it had taken."""
    exit_code: int | None = None
    """Negative: the signal's number."""
    exception: str = ""
    """The class of what the script raised."""
    message: str = ""
    stack: tuple[Frame, ...] = ()
    """Of the exception; of a rank that hung, where its main thread stood."""
    time: float = 0.0
    """Seconds from the beginning of the run to the end of this rank, by its host's clock."""
    doing: str = ""
    """The phase that it was last in: one of PHASES, or the operation of a collective."""
    doing_seconds: float = 0.0
    """For how long."""
    collectives: int = 0
    """How many collectives it had called from Python."""
    children_seconds: float = 0.0
    """CPU seconds of the Python processes that the script started before any optimizer took a step
    in it, DataLoader workers aside; 0: they did less than the script itself."""
    printed: str = ""
    """The last words of a process that died without an exception (stderr), as far as known."""

    @property
    def fell(self) -> bool:
        """Whether it failed, or was killed."""
        return self.outcome in ("failed", "killed")

    @property
    def words(self) -> str:
        """What it said of its failure: the exception in a line, else the last that it printed."""
        lines = (self.message or self.printed).strip().splitlines() or [""]
        if not self.exception:
            return lines[-1].strip()
        if any(line.startswith("Original Traceback") for line in lines):
            # Of a DataLoader worker, handed on.
            return f"{lines[-1].strip()} ({lines[0].strip()})"
        return f"{self.exception}: {lines[0].strip()}".removesuffix(": ")

    @property
    def echoes(self) -> bool:
        """Whether its failure only tells that another rank is gone, or late."""
        told = not self.exception or self.exception in OF_TORCH
        return self.fell and told and bool(ECHO.search(f"{self.message} {self.printed}"))

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's own code."""
        return next((frame for frame in reversed(self.stack) if frame.of_user), None)

    @property
    def waits(self) -> bool:
        """Whether it was last waiting for other ranks."""
        if self.doing and (self.doing not in PHASES or self.doing in BETWEEN_RANKS):
            return True
        inner: list[Frame] = []
        for frame in reversed(self.stack):
            if frame.of_user:
                break
            inner.append(frame)
        if any("torch/distributed/" in frame.file for frame in inner):
            return True
        # At the end of it DDP waits for the gradients of the others.
        return bool(inner) and self.doing in UNTIMED and inner[0].function == ENGINE


class TrainingRun(Section, frozen=True, kw_only=True):
    """The run as a whole."""

    of_training: ClassVar[bool] = True

    command: tuple[str, ...]
    """The script and its arguments."""
    seconds: float
    """From the start of the script to the end of the last rank."""
    ranks: tuple[RankEnding, ...]
    limit: str = ""
    """Why it was stopped where it did not come to the steps asked for, say ``600 s were over``."""
    asked_steps: int = 0
    world: int = 0
    """Ranks in the process group of the script itself; 0: not known."""
    optimizers: tuple[str, ...] = ()
    """The classes of the optimizers that took steps, the most frequent first."""
    framework: str = ""
    """accelerate, transformers, lightning, …, as far as they were imported."""
    log: str = ""
    """The file that tells of these ranks, where nothing was recorded: it knows no steps, and when
    they ended only in part."""

    @property
    def failures(self) -> tuple[RankEnding, ...]:
        """The ranks that failed of themselves, the earliest first."""
        own = [one for one in self.ranks if one.fell and not one.echoes]
        # The launcher ends the others by this signal once one has failed.
        unasked = [one for one in own if one.exit_code != -signal.SIGTERM]
        return tuple(sorted(unasked or own, key=lambda one: one.time))

    @property
    def echoes(self) -> tuple[RankEnding, ...]:
        """The ranks that failed for another one's sake, the earliest first."""
        return tuple(sorted((one for one in self.ranks if one.echoes), key=lambda one: one.time))

    def unjudged(self, judged: int, needed: int) -> str:
        """Why so few judged steps tell nothing; empty: they are enough, and it ended well."""
        done = min((one.steps for one in self.ranks), default=0)
        bad = [one for one in self.ranks if one.outcome not in ("stopped", "finished")]
        steps = f"{done} step{'' if done == 1 else 's'}"
        few = f"{judged or 'none'} of them could be judged, and {needed} are needed"
        if not done and (self.limit or not bad):
            why = self.limit or "the script came to its end, and no optimizer took a step"
            return why + self._elsewhere()
        if bad and all(one.outcome == "interrupted" for one in bad):
            if not done:
                return "interrupted from outside before any optimizer took a step"
            enough = f"in the {judged} that could be judged nothing was found"
            return f"interrupted from outside after {steps}; {few if judged < needed else enough}"
        if bad:
            return self.limit or f"rank {bad[0].rank} {bad[0].outcome}"
        if judged >= needed:
            return self.unrecorded
        if self.limit:
            return f"{self.limit}; {judged} of {steps} could be judged, and {needed} are needed"
        return f"it came to its end after {steps}; {few}"

    @property
    def unrecorded(self) -> str:
        """Ranks that were not started through ddoctor, and what to do; empty: there are none."""
        if self.world <= len(self.ranks):
            return ""
        seen = "1 was" if len(self.ranks) == 1 else f"{len(self.ranks)} were"
        return (
            f"of {self.world} ranks only {seen} recorded: the script starts the others itself; "
            "let torchrun start all of them"
        )

    def _elsewhere(self) -> str:
        """Where the training was instead."""
        seconds = max((one.children_seconds for one in self.ranks), default=0.0)
        if not seconds:
            return ""
        return (
            f", but in processes that it started itself ({seconds:.0f} s of CPU time), where "
            "nothing is recorded: let torchrun start the ranks, in place of "
            "torch.multiprocessing, subprocess or os.fork"
        )


class RankHost(Part, frozen=True, kw_only=True):
    """How one rank uses the CPUs of its host."""

    rank: int
    host: str
    local_ranks: int
    threads: int
    """torch.get_num_threads() in the main process; seen from outside: its threads that compute."""
    omp_threads: int | None = None
    """OMP_NUM_THREADS as it was started with; None: not set, or no number."""
    affinity: tuple[int, ...]
    """CPUs that it may use."""
    host_cpus: int
    quota: float | None = None
    """CPUs that the cgroup grants."""
    workers: int = 0
    """Its DataLoader workers."""
    worker_affinity: tuple[int, ...] = ()
    """CPUs that its workers may use, all of them together; empty: they have none of their own."""
    throttled_periods: int | None = None
    """Of the cgroup, during the judged steps; None: no quota, or not told."""
    periods: int | None = None
    waited: float | None = None
    """The part of the judged time in which the main thread waited in the run queue, 0 to 1."""
    neighbours: float | None = None
    """CPUs that processes of others took on this host meanwhile, as a mean; None: not seen."""
    gc_seconds: tuple[float, ...] = ()
    """Of each judged step, the time of Python's garbage collection."""
    gc_enabled: bool = True


class RankFlags(Part, frozen=True, kw_only=True):
    """The switches of torch on one rank, at the end of the run."""

    rank: int
    device_name: str = ""
    """The GPU's model; empty: a CPU."""
    capability: tuple[int, int] | None = None
    parameter_dtype: str = ""
    """Of most parameters, say float32."""
    autocast: str = ""
    """The dtype of autocast during the forward pass; empty: it is off."""
    matmul_precision: str = ""
    """torch.get_float32_matmul_precision()"""
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    deterministic: bool = False
    anomaly: bool = False
    """torch.autograd.set_detect_anomaly is on."""
    convolutions: int = 0
    """Modules with a convolution."""
    input_shapes: int = 0
    """How many different shapes the model was given in the judged steps."""
    compiled: bool = False
    empty_cache: int = 0
    """Calls of torch.cuda.empty_cache() in the judged steps."""
    collected: int = 0
    """Calls of gc.collect() in the judged steps."""
    checkpointed: int = 0
    """Calls of torch.utils.checkpoint in the forward passes of the judged steps."""


class RankStart(Part, frozen=True, kw_only=True):
    """One rank before its first step."""

    rank: int
    host: str
    grown: int
    """The most bytes by which it grew in host memory once it had torch, without the pages of files,
    as far as it was looked at."""
    memory: int
    """Bytes that its host has, or grants to its cgroup."""
    fsdp: bool = False
    """Whether the script had imported it."""
    place: str = ""
    """The line of the script that it was last met at, as file:line, where it took no step."""
    text: str = ""
    """The line itself."""
    inner: str = ""
    """The innermost frame that it was in, as file:function of a library; empty: its own."""


class Starts(Section, frozen=True, kw_only=True):
    """How all ranks got ready."""

    of_training: ClassVar[bool] = True

    ranks: tuple[RankStart, ...]


class RankUse(Section, frozen=True, kw_only=True):
    """How all ranks use their hosts, and how torch is set there."""

    of_training: ClassVar[bool] = True
    of_attaching: ClassVar[bool] = True

    hosts: tuple[RankHost, ...]
    flags: tuple[RankFlags, ...]

    @property
    def by_host(self) -> Mapping[str, tuple[RankHost, ...]]:
        """The ranks of each host."""
        ranks: dict[str, tuple[RankHost, ...]] = {}
        for one in self.hosts:
            ranks[one.host] = (*ranks.get(one.host, ()), one)
        return ranks


class TrialTurn(Part, frozen=True, kw_only=True):
    """The script run once more, for a few steps."""

    seconds: float | None = None
    """Of a step, the mean over ranks and judged steps; None: it did not get that far."""
    failure: str = ""


class Trial(Part, frozen=True, kw_only=True):
    """The same script without and with a change, in turns: A B A B."""

    change: tuple[str, ...]
    """As in ``Fix.settings``: loader.num_workers=3, ddp.find_unused_parameters=false, …"""
    without: tuple[TrialTurn, ...]
    with_it: tuple[TrialTurn, ...]

    @property
    def before(self) -> float | None:
        """Seconds of a step without the change, the median of the turns; None: it did not run."""
        return _median(self.without)

    @property
    def after(self) -> float | None:
        """Seconds of a step with the change, the median of the turns; None: it did not run."""
        return _median(self.with_it)

    @property
    def gained(self) -> bool:
        """Whether every turn with the change was faster than every one without, and clearly so; or
        it runs with the change only."""
        if self.after is None:
            return False
        best = min((one.seconds for one in self.without if one.seconds is not None), default=None)
        worst = max(one.seconds or 0.0 for one in self.with_it)
        return best is None or worst * GAIN < best


class Trials(Section, frozen=True, kw_only=True):
    """All changes of the script's settings that were tried."""

    of_training: ClassVar[bool] = True

    trials: tuple[Trial, ...]

    def of(self, settings: tuple[str, ...]) -> Trial | None:
        """What became of a change; None: it was not tried."""
        tried = (one for one in self.trials if one.without and one.with_it)
        return next((one for one in tried if one.change == settings), None)


def _median(turns: tuple[TrialTurn, ...]) -> float | None:
    """Of turns that all came to a figure."""
    seconds = [turn.seconds for turn in turns if turn.seconds is not None]
    return median(seconds) if seconds and len(seconds) == len(turns) else None
