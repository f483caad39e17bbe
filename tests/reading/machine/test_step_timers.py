"""The timers of DeepSpeed and Megatron."""

from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.printed import PrintedOutputs
from ddoctor.evidence.printed_figures import PrintedTimes
from ddoctor.models import Confidence, Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.nvidia_smi_texts import Card, table

DATED = "[2024-06-01 12:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] "
OFFLOADED = (
    '    "zero_optimization": {\n        "offload_optimizer": {\n            "device": "cpu"\n',
    "[2024-06-01 12:00:00,123] [INFO] [config.py:1000:print]   zero_config .... "
    "offload_param=None offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig("
    "device='cpu', nvme_path=None, buffer_count=4)\n",
    "zero_config .... offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig("
    "device=<OffloadDeviceEnum.nvme: 'nvme'>, nvme_path='/scratch')\n",
    "  offload_optimizer_device: cpu\n",
    "Adam Optimizer #0 is created with AVX512 arithmetic capability.\n",
    "[2024-06-01 12:00:00,123] [INFO] [stage_1_and_2.py:150:__init__] CPU Offload: True\n",
)
NOT_OFFLOADED = (
    '    "offload_optimizer": {"device": "none"}, "offload_param": {"device": "cpu"}\n',
    "offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig(device='none', nvme_path=None)\n",
    "[INFO] [stage_1_and_2.py:150:__init__] CPU Offload: False\n",
    "  optimizer_cpu_offload ........................... False\n",
)


def deepspeed(
    steps: int = 5,
    *,
    forward: float = 40.0,
    backward: float = 80.0,
    reduce: float = 6.0,
    step: float = 12.0,
    gather: float = 1.0,
    new: bool = False,
    prefix: str = DATED,
) -> str:
    """The lines of each step, of the versions before and after 0.10; times in ms."""
    names = ("fwd", "bwd") if new else ("forward", "backward")

    def line(times: dict[str, float]) -> str:
        timers = "".join(f" | {name}: {value:.2f}" for name, value in times.items())
        return f"{prefix}{'' if new else 'rank=0 '}time (ms){timers}\n"

    whole = {
        names[0]: forward,
        names[1]: backward,
        f"{names[1]}_inner": backward - reduce,
        f"{names[1]}_allreduce": reduce,
        "step": step,
    }
    zero = {"optimizer_allgather": gather, "optimizer_step": max(0.0, step - gather)}
    micro = {f"{name}_microstep": value for name, value in whole.items()}
    return steps * (line(zero) + line(micro) + line(whole))


def megatron(
    steps: int = 12,
    *,
    loader: float = 5.0,
    passes: float = 1200.0,
    reduce: float = 30.0,
    optimizer: float = 30.0,
    form: str = "both",
) -> str:
    """The timers with the least and the most of the ranks, the most alone, or in a line; in ms."""
    times = {
        "forward-compute": passes / 3,
        "backward-compute": passes / 1.6,
        "batch-generator": loader,
        "all-grads-sync": reduce,
        "optimizer-inner-step": optimizer / 2,
        "optimizer": optimizer,
    }
    if form == "line":
        timers = "".join(f" | {name}: {value:.2f}" for name, value in times.items())
        return steps * f"time (ms){timers}\n"
    head = "(min, max) time across ranks (ms):" if form == "both" else "max time across ranks (ms):"
    body = "".join(
        f"    {name + ' ':.<48}: "
        + (f"({0.9 * most:.2f}, {most:.2f})\n" if form == "both" else f"{most:.2f}\n")
        for name, most in {"forward-backward": passes, **times}.items()
    )
    progress = (
        " iteration       10/     500 | elapsed time per iteration (ms): 1234.5 | loss: 2.1 |\n"
    )
    return steps * f"{progress}{head}\n{body}"


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    "prefix", [DATED, "[Rank 0] ", "", f"  0%|   | 0/9 [00:00<?, ?it/s]{DATED}"]
)
def test_the_forms_of_deepspeed(read: Read, new: bool, prefix: str) -> None:
    (section,) = read(deepspeed(new=new, prefix=prefix)).all(PrintedTimes)
    (one,) = section.tables
    assert (one.count, one.line, one.in_all) == (5, 1, False)
    assert [one.passes, one.whole] == pytest.approx([0.12, 0.132])
    assert [one.communication, one.optimizer] == pytest.approx([0.007, 0.011])


def test_micro_batches_alone(read: Read) -> None:
    text = "".join(
        line for line in deepspeed().splitlines(keepends=True) if "forward_microstep" in line
    )
    (section,) = read(text).all(PrintedTimes)
    assert section.tables[0].passes == pytest.approx(0.12)


def test_sizes_are_no_times(read: Read) -> None:
    more = " | mem_allocated: 1.5000 GB | max_mem_allocated: 2.0000 GB\n"
    (section,) = read(deepspeed().replace("\n", more)).all(PrintedTimes)
    assert section.tables[0].whole == pytest.approx(0.132)


@pytest.mark.parametrize("form", ["both", "most"])
@pytest.mark.parametrize("prefix", ["", "15: ", "[default7]:", "[1,15]<stdout>:"])
def test_the_forms_of_megatron(read: Read, form: str, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in megatron(form=form).splitlines())
    (section,) = read(text).all(PrintedTimes)
    (one,) = section.tables
    assert (one.count, one.loader, one.passes) == (12, 0.005, 1.2)
    assert [one.whole, one.optimizer] == pytest.approx([1.23, 0.03])
    assert one.communication == pytest.approx(0.027 if form == "both" else 0.03)


def test_the_line_of_older_megatron(read: Read) -> None:
    (section,) = read(megatron(form="line")).all(PrintedTimes)
    assert section.tables[0].passes == pytest.approx(1.2 / 3 + 1.2 / 1.6)


@pytest.mark.parametrize("printed", OFFLOADED)
def test_an_optimizer_that_is_offloaded(diagnose: Diagnose, printed: str) -> None:
    (finding,) = diagnose(printed + deepspeed(step=900.0)).findings
    assert finding.cause == "cpu-offload-slow-optimizer"
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "the optimizer takes 899 of 1,020 ms (88%), in the median of 5 steps" in finding.because
    assert "7.5 times as long as the forward and backward passes" in finding.because


@pytest.mark.parametrize("printed", ["", *NOT_OFFLOADED])
def test_a_slow_optimizer_without_a_reason(diagnose: Diagnose, printed: str) -> None:
    (finding,) = diagnose(printed + deepspeed(step=900.0)).findings
    assert finding.cause == "cpu-offload-slow-optimizer"
    assert finding.confidence is Confidence.POSSIBLE


def test_communication(diagnose: Diagnose) -> None:
    (finding,) = diagnose(deepspeed(reduce=66.0)).findings
    assert (finding.cause, finding.confidence) == ("communication-bound-step", Confidence.POSSIBLE)
    assert "takes 67 of 132 ms (51%), in the median of 5 steps" in finding.because


@pytest.mark.parametrize("form", ["both", "most", "line"])
def test_a_slow_loader(diagnose: Diagnose, form: str) -> None:
    (finding,) = diagnose(megatron(loader=500.0, form=form)).findings
    assert (finding.cause, finding.confidence) == ("dataloader-bottleneck", Confidence.LIKELY)
    assert "waits for its batches for 500 of 1,2" in finding.because or form == "line"


@pytest.mark.parametrize(
    "text",
    [
        deepspeed(),
        megatron(),
        megatron(form="line"),
        # One step that compiled, saved, or waited.
        deepspeed(1, step=9000.0) + deepspeed(3),
        deepspeed(4) + deepspeed(2, step=2000.0) + deepspeed(4),
        megatron(3, loader=5000.0) + megatron(9),
        # Too few.
        deepspeed(2, step=900.0),
        megatron(4, loader=500.0),
        # Less than twice; some of the step.
        deepspeed(step=200.0),
        deepspeed(reduce=40.0),
        # What is offloaded is copied where it is reduced.
        OFFLOADED[0] + deepspeed(reduce=66.0, step=20.0),
        # An optimizer that is offloaded, and fast enough.
        OFFLOADED[0] + deepspeed(step=100.0),
        # Times of the start, and text that looks similar.
        "    model-and-optimizer-setup ......................: (9000.10, 9100.20)\n" * 12,
        "  adam_beta1 ...................................... 0.9\n" * 12,
        "elapsed time (ms) | forward | backward | step\n" * 12,
    ],
)
def test_sound_times(diagnose: Diagnose, text: str) -> None:
    assert diagnose(text).findings == ()


def test_a_step_that_gathers_is_no_slow_optimizer(diagnose: Diagnose) -> None:
    (finding,) = diagnose(deepspeed(step=500.0, gather=480.0)).findings
    assert finding.cause == "communication-bound-step"


def test_times_are_of_the_run_not_of_a_host(read: Read) -> None:
    card = table("550.54.15", [Card()])
    evidence = read(rank_0=deepspeed(), rank_1=deepspeed(), smi=card)
    assert [one.host for one in evidence.all(Gpus)] == [""]
    (section,) = evidence.all(PrintedTimes)
    assert [(one.file, one.rank) for one in section.tables] == [("rank.0", 0), ("rank.1", 1)]
    (outputs,) = evidence.all(PrintedOutputs)
    assert [one.command for one in outputs.outputs] == ["nvidia-smi"]
