"""An installed version has a known bug, alone or together with another package.

A regression, or two incompatible packages, break a correct script: a failing import, a TypeError
deep inside a library, or an unexplained hang.

Symptoms: the same script works on a machine with other versions; compare ``pip list`` there. The
table ``ddoctor/knowledge/combinations.toml`` holds the version ranges and where each bug was
reported.

To fix it, install a release without the bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.known_software import Combinations
from ddoctor.evidence.software import Software
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")
# Names that another release has: of a module, of a class, or of a parameter.
MISSING = re.compile(
    r"AttributeError: module '(?P<module>[\w.]+)' has no attribute"
    r"|AttributeError: '(?P<kind>\w+)' object has no attribute"
    r"|ImportError: cannot import name '\w+' from '(?P<origin>[\w.]+)'"
)
FRAMEWORKS = {"accelerate", "apex", "bitsandbytes", "datasets", "deepspeed", "flash_attn"}
FRAMEWORKS |= {"lightning", "megatron", "peft", "torch", "torchvision", "transformers", "trl"}
# DeepSpeed's optimizers, which stand in for those of torch.
WRAPPERS = {"BF16_Optimizer", "FP16_Optimizer", "DeepSpeedZeroOptimizer", "DeepSpeedEngine"}
WRAPPERS |= {"DeepSpeedZeroOptimizer_Stage3", "AcceleratedOptimizer", "AcceleratedScheduler"}


def known_bad(software: Software, known: Combinations) -> Iterator[Finding]:
    for combination in known.combinations:
        installed = combination.installed(software)
        if installed is None:
            continue
        named = " with ".join(f"{package} {version}" for package, version in installed.items())
        yield Finding(
            severity=Severity(combination.severity),
            confidence=Confidence(combination.confidence),
            because=f"{named} is installed: {combination.breaks}",
            evidence=tuple(
                Observation(
                    name=package,
                    value=version,
                    expected=f"not {combination.versions[package]}",
                    source=combination.source,
                )
                for package, version in installed.items()
            ),
            fixes=(Fix(summary="install a release without this bug", paste=combination.upgrade),),
        )


def in_a_log(run: TrainingRun) -> Iterator[Finding]:
    if not run.only_told:
        return
    for one in run.failures:
        match = MISSING.search(f"{one.exception}: {one.message}")
        if match is None:
            continue
        package = (match["module"] or match["origin"] or "").partition(".")[0]
        inner = one.stack[-1] if one.stack else None
        if package not in FRAMEWORKS and match["kind"] not in WRAPPERS:
            continue
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY if package else Confidence.POSSIBLE,
            because=(
                f"{endings.who(one)} raised {one.words}{endings.at(inner)}: what calls it was "
                f"written for another release of {package or 'the library of that class'}"
            ),
            where=Where.of([one]),
            fixes=(
                Fix(
                    summary="install releases that were made for each other",
                    paste=f"pip install --upgrade {package or 'deepspeed'}; pip check",
                    caution="or the release of that library that the calling code names",
                ),
            ),
        )
        return
