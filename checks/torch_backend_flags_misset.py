"""A torch backend setting (TF32, cudnn.benchmark, deterministic mode) slows down the GPUs.

float32 matrix multiplications do not use tensor cores, and run at a fraction of the speed, unless
``torch.set_float32_matmul_precision`` is "high" (TF32). ``cudnn.benchmark`` tries all algorithms
for each new input shape: useful with fixed shapes, slow if every batch has another shape.
Deterministic mode excludes the fast algorithms. With ``cudnn.enabled = False``, torch runs its own
kernels.

Symptoms: the GPUs are busy, but far below the throughput that others report for them.

To fix it, call ``torch.set_float32_matmul_precision("high")``, set ``cudnn.benchmark`` to match the
input shapes, and switch off deterministic mode.
"""

# Above 150 lines: several settings, each with a different condition and fix.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings, log_events
from ddoctor.analysis.script_source import shown
from ddoctor.analysis.stragglers import ENOUGH_STEPS
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# The first compute capability with TF32 (Ampere).
TF32_SINCE = (8, 0)
# Below this share of compute, the gain is less than a tenth of the step.
COMPUTE = 0.1
# New shapes keep arriving if half of the steps or more have one.
KEEP_COMING = 0.5
# A vision transformer has one, for its patches; ResNet-18 has 20.
CONVOLUTIONAL = 10

CUDNN = "torch.backends.cudnn.enabled"
TF32 = ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")
# TF32 changes nothing there; and `set_float32_matmul_precision` has the last word on matmul.
HALF = re.compile(r"autocast|float16|fp16|bf16|\.half\(|matmul_precision|mixed_precision")


def without_tensor_cores(use: RankUse, steps: Steps | None) -> Iterator[Finding]:
    flags = [
        one
        for one in _on_gpus(use)
        if one.capability is not None
        and one.capability >= TF32_SINCE
        and one.parameter_dtype == "float32"
        and not one.autocast
        and one.matmul_precision == "highest"
    ]
    ranks = steps.ranks if steps is not None else ()
    computing = max((rank.share("forward", "backward") for rank in ranks), default=1.0)
    if not flags or computing < COMPUTE:
        return
    # cuDNN's convolutions use TF32 by default.
    convolutions = max(one.convolutions for one in flags) >= CONVOLUTIONAL
    yield _finding(
        flags,
        use,
        f"on {_who(flags, use)}, float32 matmul runs with precision 'highest' and without "
        f"autocast, so it does not use the tensor cores of {flags[0].device_name}"
        + (
            "; the convolutions do use them, so a run with 'high' would show the gain"
            if convolutions
            else ""
        ),
        Fix.python(
            summary="enable TF32 for float32 matmul",
            paste='torch.set_float32_matmul_precision("high")',
            caution="rounds the factors to 10 bits of mantissa; sums stay in float32",
            expected_gain="torch's notes on CUDA: 0.016 s instead of 0.11 s for a matmul of "
            "10240×10240 on an A100",
            settings=("torch.matmul_precision=high",),
        ),
        Fix.python(
            summary="or train in bfloat16",
            paste='with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = …',
            caution="changes results more than TF32; weights and optimizer stay in float32",
        ),
        sure=not convolutions,
        evidence=Observation(
            name="float32 matmul precision",
            value="highest",
            expected="high",
            source="torch.get_float32_matmul_precision()",
        ),
    )


def benchmark_of_every_shape(use: RankUse, steps: Steps) -> Iterator[Finding]:
    enough = max(ENOUGH_STEPS, KEEP_COMING * steps.count)
    flags = [
        one
        for one in _on_gpus(use)
        if one.cudnn_benchmark and one.convolutions and one.input_shapes >= enough
    ]
    if flags:
        most = max(one.input_shapes for one in flags)
        yield _finding(
            flags,
            use,
            f"cudnn.benchmark is on, but in {steps.count} steps {_who(flags, use)} passed {most} "
            "different shapes to the model: for each, cuDNN tries all algorithms of "
            f"{flags[0].convolutions} convolutions",
            Fix.python(
                summary="switch off cudnn.benchmark",
                paste="torch.backends.cudnn.benchmark = False",
                caution="or keep it on, and pad the batches to a few shapes",
            ),
            sure=True,
            evidence=Observation(
                name="input shapes", value=most, expected=1, source="calls of the model"
            ),
        )


def no_benchmark_of_the_only_shape(use: RankUse) -> Iterator[Finding]:
    flags = [
        one
        for one in _on_gpus(use)
        if one.cudnn_benchmark is False
        and one.convolutions >= CONVOLUTIONAL
        and one.input_shapes == 1
        and not (one.compiled or one.deterministic or one.cudnn_deterministic)
    ]
    if flags:
        yield _finding(
            flags,
            use,
            f"cudnn.benchmark is off on {_who(flags, use)}, with one input shape and "
            f"{flags[0].convolutions} convolutions: a run with it would show whether cuDNN's "
            "default choice is the fastest",
            Fix.python(
                summary="switch on cudnn.benchmark",
                paste="torch.backends.cudnn.benchmark = True",
                caution="costs some seconds and memory in the first step",
            ),
        )


def deterministic(use: RankUse) -> Iterator[Finding]:
    flags = [one for one in _on_gpus(use) if one.deterministic or one.cudnn_deterministic]
    if flags:
        every = any(one.deterministic for one in flags)
        name = "torch.use_deterministic_algorithms" if every else "cudnn.deterministic"
        yield _finding(
            flags,
            use,
            f"{name} is set on {_who(flags, use)}, which excludes faster algorithms: useful to "
            "compare runs; a run without it would show its cost",
            Fix.python(
                summary="switch it off, if runs need not be bitwise reproducible",
                paste=f"{name}(False)" if every else f"torch.backends.{name} = False",
            ),
        )


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("tensor-cores"):
        yield log_events.finding(
            [event],
            "matrix products in float32 do not use the tensor cores of this GPU",
            Fix.python(
                summary="allow TF32 in matrix products",
                paste='torch.set_float32_matmul_precision("high")',
                caution="products have 10 bits of mantissa instead of 23",
            ),
            severity=Severity.NOTE,
        )


def deterministic_in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    if use is not None:
        return  # what was measured during the training is better evidence
    lines = [
        one.at
        for one in script.settings
        if one.name == "torch.backends.cudnn.deterministic"
        and one.value == "True"
        and "condition" not in one.within
    ]
    lines += [
        one.at
        for one in script.of("torch.use_deterministic_algorithms")
        if one.argument("mode", 0) == "True" and not one.test
    ]
    for line in lines[:1]:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=(
                f"{shown(line)} excludes faster algorithms: useful to compare runs; a run without "
                "it would show its cost"
            ),
            fixes=(
                Fix.python(
                    summary="switch it off, if runs need not be bitwise reproducible",
                    paste=line.text.replace("True", "False"),
                ),
            ),
        )


def cudnn_off_in_the_source(script: Script, use: RankUse | None) -> Iterator[Finding]:
    """torch then runs its own kernels for convolutions and recurrent layers."""
    if use is not None:
        return
    off = _switched_off(script, CUDNN)
    if off is not None:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=f"{shown(off)} leaves convolutions and recurrent layers to torch's own, slower "
            "kernels: useful to look for a fault of cuDNN; a run without it would show its cost",
            fixes=(Fix.python(summary="leave cuDNN on", paste=f"{CUDNN} = True"),),
        )


def tf32_off_in_the_source(
    script: Script, launch: Launch | None, use: RankUse | None
) -> Iterator[Finding]:
    """Neither matmul nor convolutions in float32 may use the tensor cores."""
    off = [_switched_off(script, name) for name in TF32]
    if use is not None or _in_half_precision(script, launch):
        return
    if (matmul := off[0]) is not None and (convolution := off[1]) is not None:
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=f"{shown(matmul)} and {convolution.place} keep float32 off the tensor cores, "
            "and no line trains in bfloat16 or float16: useful where each digit counts; a run with "
            "TF32 would show the gain",
            fixes=(
                Fix.python(
                    summary="allow TF32",
                    paste="\n".join(f"{name} = True" for name in TF32),
                    caution="rounds the factors to 10 bits of mantissa; sums stay in float32",
                ),
            ),
        )


def _switched_off(script: Script, name: str) -> SourceLine | None:
    """Where the script's last word on a setting is False, in every run."""
    sets = [one for one in script.settings if one.name == name]
    off = all(one.value == "False" and not one.within for one in sets)
    return sets[0].at if sets and off else None


def _in_half_precision(script: Script, launch: Launch | None) -> bool:
    """Whether a line or the launch may choose another type than float32."""
    told = launch.get("precision") if launch is not None else None
    if told is not None and told.value != "no":
        return True
    by_name = any(HALF.search(one.name) for one in script.calls)
    texts = (one.at.text for one in script.calls)
    return by_name or bool(script.precisions) or any(map(HALF.search, texts))


def _on_gpus(use: RankUse) -> Sequence[RankFlags]:
    return [one for one in use.flags if one.device_name and one.capability is not None]


def _who(flags: Sequence[RankFlags], use: RankUse) -> str:
    return endings.ranks((one.rank for one in flags), every=use.flags)


def _finding(
    flags: Sequence[RankFlags],
    use: RankUse,
    because: str,
    *fixes: Fix,
    sure: bool = False,
    evidence: Observation | None = None,
) -> Finding:
    ranks = tuple(one.rank for one in flags) if len(flags) < len(use.flags) else ()
    hosts = {one.host for one in use.hosts if not ranks or one.rank in ranks}
    return Finding(
        severity=Severity.WARNING if sure else Severity.NOTE,
        confidence=Confidence.LIKELY if sure else Confidence.POSSIBLE,
        because=because,
        evidence=(evidence,) if evidence is not None else (),
        where=Where(hosts=tuple(sorted(hosts)), ranks=ranks),
        fixes=fixes,
    )
