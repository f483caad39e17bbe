"""A switch of torch keeps the GPUs from the speed that they have.

Matrix products of float32 run without tensor cores, at a fraction of the speed, unless
``torch.set_float32_matmul_precision`` is "high" (TF32). ``cudnn.benchmark`` tries all algorithms at
each new shape of the input: worth it with fixed shapes, slow where every batch has another one.
What asks for deterministic results leaves the fast algorithms out.

Seen from outside: the GPUs are busy, and still far below the rate that others report for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddoctor.evidence.host import cpu_list
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

# The first compute capability with TF32 (Ampere).
TF32_SINCE = (8, 0)
# The rest waits for something else: what is gained is less than a tenth of the step.
COMPUTE = 0.1
# In half of the steps or more a shape that was not there before: they keep coming.
KEEP_COMING = 0.5
# The published detectors want to see ten steps before they believe in anything.
ENOUGH_STEPS = 10
# A transformer for images has one, for its patches; ResNet-18 has 20.
CONVOLUTIONAL = 10


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
    if not flags or (steps is not None and _computing(steps) < COMPUTE):
        return
    # cuDNN's convolutions use TF32 unless they are told not to.
    convolutions = max(one.convolutions for one in flags) >= CONVOLUTIONAL
    yield Finding(
        severity=Severity.NOTE if convolutions else Severity.WARNING,
        confidence=Confidence.POSSIBLE if convolutions else Confidence.LIKELY,
        because=(
            f"on {_who(flags, use)} float32 is multiplied with precision 'highest' and without "
            f"autocast, so not on the tensor cores of {flags[0].device_name}"
            + (
                "; the convolutions do use them, so a run with 'high' settles what it brings"
                if convolutions
                else ""
            )
        ),
        evidence=(
            Observation(
                name="float32 matmul precision",
                value="highest",
                expected="high",
                source="torch.get_float32_matmul_precision()",
            ),
        ),
        where=_where(flags, use),
        fixes=(
            Fix(
                summary="let float32 products use TF32",
                paste='torch.set_float32_matmul_precision("high")',
                language="python",
                caution="10 bits of mantissa for the factors, float32 for the sums",
                expected_gain="torch's notes on CUDA: 0.016 s in place of 0.11 s for a product of "
                "10240×10240 on an A100",
                settings=("torch.matmul_precision=high",),
            ),
            Fix(
                summary="or train in bfloat16",
                paste='with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = …',
                language="python",
                caution="changes the numbers more; weights and optimizer stay in float32",
            ),
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
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"cudnn.benchmark is on, and in {steps.count} steps {_who(flags, use)} gave the "
                f"model {most} different shapes: for each, all algorithms of "
                f"{flags[0].convolutions} convolutions are tried"
            ),
            evidence=(
                Observation(name="shapes of the input", value=most, expected=1, source="its calls"),
            ),
            where=_where(flags, use),
            fixes=(
                Fix(
                    summary="switch it off",
                    paste="torch.backends.cudnn.benchmark = False",
                    language="python",
                    caution="or pad the batches to a few shapes, and leave it on",
                ),
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
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=(
                f"cudnn.benchmark is off on {_who(flags, use)}, though the input always has the "
                f"same shape and the model has {flags[0].convolutions} convolutions: a run with "
                "it settles whether cuDNN's own guess is the best"
            ),
            where=_where(flags, use),
            fixes=(
                Fix(
                    summary="let cuDNN try its algorithms once",
                    paste="torch.backends.cudnn.benchmark = True",
                    language="python",
                    caution="takes some seconds and memory at the first step",
                ),
            ),
        )


def deterministic(use: RankUse) -> Iterator[Finding]:
    flags = [one for one in _on_gpus(use) if one.deterministic or one.cudnn_deterministic]
    if flags:
        every = any(one.deterministic for one in flags)
        name = "torch.use_deterministic_algorithms" if every else "cudnn.deterministic"
        off = f"{name}(False)" if every else "torch.backends.cudnn.deterministic = False"
        yield Finding(
            severity=Severity.NOTE,
            confidence=Confidence.POSSIBLE,
            because=(
                f"{name} is set on {_who(flags, use)}, which leaves faster algorithms out: right "
                "for a comparison of runs; what it costs, a run without it settles"
            ),
            where=_where(flags, use),
            fixes=(
                Fix(
                    summary="switch it off where runs need not repeat to the last bit",
                    paste=off,
                    language="python",
                ),
            ),
        )


def _on_gpus(use: RankUse) -> Sequence[RankFlags]:
    return [one for one in use.flags if one.device_name and one.capability is not None]


def _computing(steps: Steps) -> float:
    """The part of the step in forward and backward, of the rank with the most of it."""
    return max(
        (steps.share("forward", rank) + steps.share("backward", rank) for rank in steps.ranks),
        default=1.0,
    )


def _who(flags: Sequence[RankFlags], use: RankUse) -> str:
    if len(flags) == len(use.flags):
        return "all ranks" if len(flags) > 1 else "the rank"
    return f"rank {cpu_list(one.rank for one in flags)}"


def _where(flags: Sequence[RankFlags], use: RankUse) -> Where:
    """The ranks, where it is not all of them."""
    ranks = tuple(one.rank for one in flags) if len(flags) < len(use.flags) else ()
    hosts = {one.host for one in use.hosts if not ranks or one.rank in ranks}
    return Where(hosts=tuple(sorted(hosts)), ranks=ranks)
