"""How a recorded training run ended on each rank, and how each rank used its host."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import median
from typing import Literal

from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.section import Count, Part, RunSection, Section
from ddoctor.evidence.steps import BETWEEN_RANKS, PHASES
from ddoctor.evidence.threads import ScriptThread

# How gloo, NCCL and the store of torch.distributed tell a rank that another one is gone, or late.
ECHO = re.compile(
    r"(closed|reset) by peer|remote process exit|ncclRemoteError|broken pipe"
    r"|timed out waiting \d+ms for (recv|send)|watchdog caught collective operation timeout"
    r"|failed to pass monitoredbarrier|communicator was aborted"
    r"|did the remote server shutdown or crash|wait timeout after \d+ms|socket timeout"
    r"|connectFullMesh failed",
    re.IGNORECASE,
)
# Of those, a rank that waited for as long as its process group allows.
TIMED_OUT = re.compile(
    r"timed out waiting (\d{1,12})ms for (?:recv|send)|wait timeout after (\d{1,12})ms"
    r"|Timeout\(ms\)=(\d{1,12})",
    re.IGNORECASE,
)
# torch/multiprocessing/spawn.py
SPAWNED = re.compile(r"-- Process (\d{1,7}) terminated with the following error:")
TRACEBACK = "Traceback (most recent call last):"
"""How Python begins one; multiprocessing hands the one of a child on within a message."""

# torch/autograd/graph.py: into the engine, which runs no Python while it waits.
ENGINE = "_engine_run_backward"

# The recorder was in the pass, or rested: it does not tell the wait at its end from the pass.
UNTIMED = ("backward", "rest")

# A ConnectionResetError is another matter: of a download, say.
OF_TORCH = ("RuntimeError", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError")

# Half of the 10 % from which on a slowdown counts: a fix need not cure all of it. Each turn is a
# mean over many steps and ranks, and all turns have to agree.
GAIN = 1.05

Source = Literal["", "exit", "stderr", "TORCHELASTIC_ERROR_FILE"]
Outcome = Literal["stopped", "finished", "failed", "killed", "hung", "interrupted", "vanished"]


class RankEnding(Part, frozen=True, kw_only=True):
    """How one rank ended."""

    signed = frozenset({"exit_code", "rank"})

    rank: int
    """-1: a log does not say it."""
    host: str
    pid: int
    outcome: Outcome
    """stopped: by ddoctor, as requested. finished: the script ended. failed: it raised an error, or
    exited with a code. killed: a signal not from ddoctor ended it. hung: it made no progress, and
    ddoctor ended it. interrupted: the user or the launcher ended it. vanished: it did not respond
    any more, nor did its supervisor."""
    steps: int
    """Number of optimizer steps taken."""
    exit_code: int | None = None
    """Exit code; negative: the number of a signal."""
    exception: str = ""
    """Class of the script's exception: the first one, if it raised others while handling it."""
    message: str = ""
    then: str = ""
    """What it raised last while it handled that exception, or the text with which it exited."""
    source: Source = ""
    """What shows an exception that the script itself caught before it exited: Python's state at the
    exit, or the last traceback in a text. Empty: the exception ended the script."""
    stack: tuple[Frame, ...] = ()
    """Stack of the exception, or of the exit; of a rank that hung, that of its main thread."""
    within: tuple[Block, ...] = ()
    """Loops and branches around the user's frames of the stack, innermost last."""
    contexts: tuple[Frame, ...] = ()
    """``with`` statements around these frames, innermost last."""
    threads: tuple[ScriptThread, ...] = ()
    """Of a rank that hung: its other threads that were in the user's code, at that moment."""
    time: float = 0.0
    """Seconds from the start of the run to the end of this rank, by its host's clock."""
    doing: str = ""
    """Its last phase: one of PHASES, or the operation of a collective."""
    doing_seconds: float = 0.0
    """Seconds in that phase."""
    busy: bool | None = None
    """Whether it used a CPU there, if it had stood there for long at its end; None: it had not."""
    group: int = 0
    """Process group of that collective, by a number that its ranks compute alike; 0: all ranks."""
    group_size: int = 0
    """Number of ranks in it; 0: all."""
    collectives: int = 0
    """Number of collectives that it called from Python."""
    recent: tuple[str, ...] = ()
    """The last of them that it has left, oldest first."""
    children_seconds: float = 0.0
    """CPU seconds of Python processes started before the first step, if above its own."""
    thread: str = ""
    """The last exception that ended a thread in the user's code, with its line; from stderr."""
    logged: str = ""
    """The file and line of a log that names its exception."""
    printed: str = ""
    """Last lines on standard error of a process that died without an exception."""

    @property
    def said(self) -> str:
        """The messages of its exceptions and the last printed lines."""
        return f"{self.message} {self.then} {self.printed}"

    @property
    def fell(self) -> bool:
        """Whether it failed, or a signal ended it."""
        return self.outcome in ("failed", "killed")

    @property
    def words(self) -> str:
        """Its failure in words: the exception in one line, else what it printed last."""
        lines = (self.message or self.printed).strip().splitlines() or [""]
        first = _sentence(lines)
        if not self.exception:
            # Of C++ the message; the hints of torch follow it.
            thrown = (line.partition("what():")[2] for line in reversed(lines))
            return next(filter(None, thrown), lines[-1]).strip()
        if any(line.endswith(TRACEBACK) for line in lines):
            # That of another process, such as a DataLoader worker.
            of = "" if self.spawned is not None else f" ({lines[0].strip()})"
            return f"{lines[-1].strip()}{of}"
        then = _sentence(self.then.splitlines())
        return f"{self.exception}: {first}".removesuffix(": ") + (f", then {then}" if then else "")

    @property
    def spawned(self) -> int | None:
        """The number of the process that raised it, if the script starts its ranks by itself."""
        found = SPAWNED.match(self.message.strip())
        return int(found[1]) if found else None

    @property
    def echoes(self) -> bool:
        """Whether its failure only reports that another rank is gone or lags."""
        told = not self.exception or self.exception in OF_TORCH
        if self.exit_code == -signal.SIGKILL:
            # It says nothing any more: what is printed is of its workers, whose pipes break then.
            return False
        return self.fell and told and bool(ECHO.search(f"{self.message} {self.printed}"))

    @property
    def stood_seconds(self) -> float:
        """Seconds of its wait at the end, which ddoctor or its own timeout ended; 0: none."""
        if self.outcome == "hung":
            return self.doing_seconds
        told = TIMED_OUT.search(f"{self.message} {self.printed}") if self.echoes else None
        return int(next(filter(None, told.groups()))) / 1000 if told and self.waits else 0.0

    @property
    def stood(self) -> bool:
        """Whether it hung, or waited in vain for as long as its process group allows."""
        return self.outcome == "hung" or self.stood_seconds > 0

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return next((frame for frame in reversed(self.stack) if frame.of_user), None)

    @property
    def waits(self) -> bool:
        """Whether it was last waiting for other ranks."""
        if self.doing and (self.doing not in PHASES or self.doing in BETWEEN_RANKS):
            return True
        inner = list(takewhile(lambda frame: not frame.of_user, reversed(self.stack)))
        if any("torch/distributed/" in frame.file for frame in inner):
            return True
        # At the end of it DDP waits for the gradients of the others.
        return bool(inner) and self.doing in UNTIMED and inner[0].function == ENGINE


def _sentence(lines: Sequence[str]) -> str:
    """The first line, with those that it announces by a colon."""
    stripped = [line.strip() for line in lines]
    announcing = len([*takewhile(lambda line: line.endswith(":"), stripped)])
    return " ".join(stripped[: announcing + 1])


class TrainingRun(Section, frozen=True, kw_only=True):
    """The run as a whole."""

    commands = ("run", "attach", "diagnose")

    command: tuple[str, ...]
    """The script and its arguments."""
    seconds: float
    """Seconds from the start of the script to the end of the last rank."""
    ranks: tuple[RankEnding, ...]
    limit: str = ""
    """Why it stopped before the requested number of steps, say ``600 s were over``."""
    world: Count = 0
    """Number of ranks in the script's own process group; 0: not known."""
    optimizers: tuple[str, ...] = ()
    """Classes of the optimizers that took steps, most frequent first."""
    framework: str = ""
    """A name of ``knowledge/frameworks.toml``: what runs the loop; empty: the script itself."""
    ordered: bool = True
    """Whether it is known who failed first; not so between files without comparable times."""
    log: str = ""
    """The log file behind these ranks if there is no recording; it holds no steps."""

    @property
    def only_told(self) -> bool:
        """Whether nothing but a log is known of it, and not what its script was."""
        return bool(self.log) and not self.command

    @property
    def script(self) -> str:
        """For a command that is pasted."""
        return self.command[0] if self.command else "train.py"

    @property
    def failures(self) -> tuple[RankEnding, ...]:
        """The ranks that failed by themselves, earliest first."""
        own = [one for one in self.ranks if one.fell and not one.echoes]
        # The launcher ends the others by this signal once one has failed; some have raised by then.
        unasked = [one for one in own if one.exit_code != -signal.SIGTERM or one.exception]
        return tuple(sorted(unasked or own, key=lambda one: one.time))

    def raised(self, error: str | re.Pattern[str]) -> tuple[RankEnding, ...]:
        """The ranks that failed with this text in the exception or in the last printed lines."""
        found = (one for one in self.ranks if one.fell and re.search(error, one.said))
        return tuple(sorted(found, key=lambda one: one.time))

    @property
    def echoes(self) -> tuple[RankEnding, ...]:
        """The ranks that failed because of another rank, earliest first."""
        return tuple(sorted((one for one in self.ranks if one.echoes), key=lambda one: one.time))

    def unjudged(self, judged: int, needed: int) -> str:
        """Why there are too few judged steps; empty: enough, and the run ended well."""
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
        """Ranks that were not started through ddoctor, and what to do; empty: none."""
        if self.world <= len(self.ranks):
            return ""
        seen = "1 was" if len(self.ranks) == 1 else f"{len(self.ranks)} were"
        return (
            f"of {self.world} ranks only {seen} recorded: the script starts the others itself; "
            "let torchrun start all of them, or use `ddoctor attach`"
        )

    def _elsewhere(self) -> str:
        """Where the training ran instead."""
        seconds = max((one.children_seconds for one in self.ranks), default=0.0)
        if not seconds:
            return ""
        return (
            f", but in processes that it started itself ({seconds:.0f} s of CPU time), where "
            "nothing is recorded: let torchrun start the ranks instead of "
            "torch.multiprocessing, subprocess or os.fork, or use `ddoctor attach`"
        )


class RankHost(Part, frozen=True, kw_only=True):
    """One rank's use of the CPUs of its host."""

    rank: int
    host: str
    local_ranks: Count
    """Number of ranks on its host."""
    threads: int
    """torch.get_num_threads() in the main process; sampled from outside: its computing threads."""
    omp_threads: int | None = None
    """OMP_NUM_THREADS at the start; None: not set, or no number."""
    affinity: tuple[int, ...]
    """Indices of the CPUs that it may use; empty: it ended before they were read."""
    host_cpus: int
    quota: float | None = None
    """CPUs that the cgroup grants; None: unlimited."""
    workers: Count = 0
    helpers: float = 0.0
    """CPUs that its other child processes used, mean; those that use less than 0.2 do not count."""
    helper: Frame | None = None
    """The user's line at which the busiest of them was sampled once; None: not sampled."""
    worker_affinity: tuple[int, ...] = ()
    """Indices of the CPUs that its workers may use together; empty: no separate mask."""
    throttled_periods: int | None = None
    """Throttled periods of the cgroup during the judged steps; None: no quota, or not known."""
    periods: int | None = None
    """Quota periods of the cgroup during the judged steps; None: no quota, or not known."""
    waited: float | None = None
    """Share of the judged time in which the main thread waited in the run queue, 0 to 1."""
    neighbours: float | None = None
    """CPUs that other processes used on this host meanwhile, mean; None: not seen."""
    gc_enabled: bool = True


class GivenUp(Part, frozen=True, kw_only=True):
    """A function that torch.compile compiled up to its limit, and runs uncompiled since."""

    frame: Frame
    """Where it begins."""
    times: int
    """How often it was compiled."""
    seconds: float
    """What these took."""
    reason: str = ""
    """What made the last one necessary, as ``scale == 0.006``; empty: unknown."""


class Repeat(Part, frozen=True, kw_only=True):
    """Layers that compute the same input twice in each step."""

    line: Frame | None
    """The user's line that leads to the second time; None: not known."""
    random: bool
    """Whether the results differ, as dropout makes them."""
    seconds: float
    """What all but the first time take in a step, forwards."""
    weights: int = 0
    """How often a parametrization computes its weight again; 0: they are layers with an input."""


class EvaluationMode(Part, frozen=True, kw_only=True):
    """A model that learns in evaluation mode."""

    name: str
    """Its class."""
    steps: int
    """Number of last steps."""
    trained_before: bool
    """Whether it was in training mode before these."""
    layers: tuple[str, ...]
    """Classes of its layers that compute something else in evaluation mode, such as Dropout."""


class NotLoaded(Part, frozen=True, kw_only=True):
    """A state dict that was loaded with ``strict=False``, and of which the model took nothing."""

    at: Frame | None
    """The user's line that loads it; None: not known."""
    entries: int
    has: str
    """The name of its first entry."""
    lacks: str
    """The name of the model's first tensor."""


class RankFlags(Part, frozen=True, kw_only=True):
    """Torch's settings on one rank, at the end of the run, and counts of the judged steps."""

    rank: int
    device_name: str = ""
    """The GPU's model; empty: a CPU."""
    capability: tuple[int, int] | None = None
    parameter_dtype: str = ""
    """Data type of most parameters, say float32."""
    autocast: str = ""
    """Data type of autocast in the forward pass; empty: off."""
    matmul_precision: str = ""
    """Result of torch.get_float32_matmul_precision()."""
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    deterministic: bool = False
    anomaly: bool = False
    """Whether torch.autograd.set_detect_anomaly is on."""
    convolutions: int = 0
    """Number of modules with a convolution."""
    input_shapes: int = 0
    """Number of different input shapes of the model in the judged steps."""
    compiled: bool = False
    empty_cache: int = 0
    """Calls of torch.cuda.empty_cache() in the judged steps."""
    collected: int = 0
    """Calls of gc.collect() in the judged steps."""
    checkpointed: int = 0
    """Calls of torch.utils.checkpoint in the forward passes of the judged steps."""
    profiled: int = 0
    """Judged steps that a profiler of torch recorded."""
    operations: int = 0
    """Operations that the backward passes of one of the first steps run through, at most 20,000."""
    graph_parameters: int = 0
    """Parameters that these compute gradients of."""
    without_gradients: bool = False
    """Whether no optimizer found a gradient in any of its parameters, in the first steps."""
    never_zeroed: bool = False
    """Whether the gradients of an optimizer's first steps add up, as nothing zeroes them."""
    zero_gradients: bool = False
    """Whether the optimizers' first steps found only zeros, although passes had added gradients."""
    given_up: tuple[GivenUp, ...] = ()
    repeat: Repeat | None = None
    remade: bool = False
    """Whether each step has a new optimizer, which lost what the one before had kept."""
    remade_at: Frame | None = None
    """The line that makes it; None: not found, or not known."""
    evaluation_mode: EvaluationMode | None = None
    zero_steps: int = 0
    """Number of last steps in which the learning rate of every optimizer was zero."""
    evaluations: int = 0
    """Evaluations between two of the first steps, whose weights before and after were compared."""
    evaluations_with_changes: int = 0
    """Those after which the training continued with other weights."""
    changed_otherwise: int = 0
    """Steps without an evaluation after which it did so, of eight after each one."""
    not_loaded: NotLoaded | None = None
    casts: int = 0
    """Casts of parameters to another type in one of the first steps, as autocast makes them."""
    cast_parameters: int = 0
    """Parameters that are cast there, counted in each backward pass."""
    cast_bytes: int = 0
    """Bytes of these, for each of the casts."""


class RankStart(Part, frozen=True, kw_only=True):
    """One rank before its first step."""

    rank: int
    host: str
    grown: int
    """Largest growth of host memory after the import of torch: bytes without file pages."""
    memory: int
    """Bytes of the host's memory, or of its cgroup's limit."""
    fsdp: bool = False
    """Whether the script had imported FSDP."""
    place: str = ""
    """The script's last sampled line, as file:line, if it took no step."""
    text: str = ""
    """The source line."""
    inner: str = ""
    """The innermost library frame, as file:function; empty: the user's own."""


class Starts(RunSection, frozen=True, kw_only=True):
    """The start of all ranks."""

    ranks: tuple[RankStart, ...]


class RankUse(Section, frozen=True, kw_only=True):
    """CPU use of all ranks, and torch's settings there."""

    commands = ("run", "attach")

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
    """One more run of the script, for a few steps."""

    seconds: float | None = None
    """Mean seconds of a step over ranks and judged steps; None: the run did not reach them."""
    failure: str = ""


class Trial(Part, frozen=True, kw_only=True):
    """The same script without and with a change, alternately: A B A B."""

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
        """Whether each turn with it is clearly faster than each without, or it alone can run."""
        if self.after is None:
            return False
        best = min((one.seconds for one in self.without if one.seconds is not None), default=None)
        worst = max(one.seconds or 0.0 for one in self.with_it)
        return best is None or worst * GAIN < best

    @property
    def varies(self) -> bool:
        """Whether it is faster in the median, and not in each turn."""
        if self.before is None or self.after is None or self.gained:
            return False
        return self.after * GAIN < self.before


class Trials(RunSection, frozen=True, kw_only=True):
    """All changes of the script's settings that were tried."""

    trials: tuple[Trial, ...]

    def of(self, settings: tuple[str, ...]) -> Trial | None:
        """The trial of a change; None: it was not tried."""
        tried = (one for one in self.trials if one.without and one.with_it)
        return next((one for one in tried if one.change == settings), None)


def _median(turns: tuple[TrialTurn, ...]) -> float | None:
    """The median of turns that all have a time; None: one has none."""
    seconds = [turn.seconds for turn in turns if turn.seconds is not None]
    return median(seconds) if seconds and len(seconds) == len(turns) else None
