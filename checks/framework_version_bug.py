"""An installed version has a known bug, alone or together with another package.

A regression, or two incompatible packages, break a correct script: a failing import, a TypeError
deep inside a library, or an unexplained hang.

Symptoms: the same script works on a machine with other versions; compare ``pip list`` there. The
table ``ddoctor/knowledge/combinations.toml`` holds the version ranges and where each bug was
reported.

To fix it, install a release without the bug.
"""

# Above 150 lines: a table of versions, and three kinds of errors of packages that do not fit.

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.known_software import Combinations
from ddoctor.evidence.software import Software
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("dead-rank", "first-failure-masked", "script-error")
# Parameters that another release has: the callee is a class that scripts call, or the caller is a
# library itself.
CALLED = re.compile(
    r"(?:(?P<callee>\w{1,100})(?:\.__init__)?\(\) )?got an unexpected keyword argument '\w{1,100}'"
)
CLASSES = {"Accelerator", "DeepSpeedPlugin", "FullyShardedDataParallelPlugin", "Trainer"}
CLASSES |= {"TrainingArguments", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "LoraConfig"}
CLASSES |= {"SFTConfig", "SFTTrainer", "DPOConfig", "DPOTrainer", "GRPOConfig", "GRPOTrainer"}
CLASSES |= {"DataLoader", "DistributedDataParallel", "FullyShardedDataParallel", "GradScaler"}
# Names that another release has: of a module, of a class, or of a parameter.
MISSING = re.compile(
    r"AttributeError: module '(?P<module>[\w.]+)' has no attribute"
    r"|AttributeError: '(?P<kind>\w+)' object has no attribute"
    r"|ImportError: cannot import name '\w+' from '(?P<origin>[\w.]+)'"
)
FRAMEWORKS = {"accelerate", "apex", "bitsandbytes", "datasets", "deepspeed", "flash_attn"}
FRAMEWORKS |= {"lightning", "megatron", "peft", "torch", "torchvision", "transformers", "trl"}
FRAMEWORKS |= {"diffusers", "google", "huggingface_hub", "numpy", "ray", "timm", "tokenizers"}
FRAMEWORKS |= {"torchaudio", "triton", "vllm", "xformers"}
# A requirement as pip writes it: transformers' require_version, pkg_resources, many libraries.
BOUND = r"(?:[<>=!~]=|[<>])\s?v?\d[\w.*]{0,20}"
REQUIRED = re.compile(
    rf"(?P<package>[A-Za-z][\w.-]{{0,60}})(?:\[[\w,-]{{1,40}}\])?[`'\"]?\s{{0,2}}"
    rf"(?P<bounds>{BOUND}(?:,\s?{BOUND}){{0,3}})"
)
ASKED = re.compile(
    r"requir|needs?\b|found|you have|compatible|install|upgrade|at least|minimum", re.I
)
OF_IMPORTS = {"ImportError", "VersionConflict", "ContextualVersionConflict"}
# Of compiled parts that were made for another release of what they are used with.
COMPILED = re.compile(
    r"(?P<library>[\w.-]{1,100})\.so(?:\.\d{1,4})*: undefined symbol: (?!p?nccl)"
    r"|version `GLIBC(?:XX)?_[\d.]{1,10}' not found"
    r"|operator (?P<package>\w{1,60})::\w{1,60} does not exist"
    r"|were compiled with different CUDA (?:major )?versions"
    r"|\w{1,60}\.\w{1,60} size changed, may indicate binary incompatibility"
    r"|compiled using NumPy 1\.x cannot be run in"
)
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
    """A name that another release has."""
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
        yield _of(
            one,
            f"{endings.who(one)} raised {one.words}{endings.at(inner)}: what calls it was "
            f"written for another release of {package or 'the library of that class'}",
            Fix(
                summary="install releases that were made for each other",
                paste=f"pip install --upgrade {package or 'deepspeed'}; pip check",
                caution="or the release of that library that the calling code names",
            ),
            Confidence.LIKELY if package else Confidence.POSSIBLE,
        )
        return


def required(run: TrainingRun) -> Iterator[Finding]:
    """A library that refuses the installed version of another one."""
    if not run.only_told:
        return
    for one in run.failures:
        match = REQUIRED.search(one.message)
        if match is None or not ASKED.search(one.message):
            continue
        package, bounds = match["package"], match["bounds"].replace(" ", "")
        if one.exception not in OF_IMPORTS and package.replace("-", "_") not in FRAMEWORKS:
            continue
        yield _of(
            one,
            f"{endings.who(one)} raised {one.words}",
            Fix(
                summary="install a version within these bounds",
                paste=f"pip install '{package}{bounds}'",
            ),
        )
        return


def called_as_before(run: TrainingRun) -> Iterator[Finding]:
    """A call with parameters that the installed release does not have."""
    if not run.only_told:
        return
    for one in run.failures:
        match = CALLED.search(one.message) if one.exception == "TypeError" else None
        inner = one.stack[-1] if one.stack else None
        if match is None or not (
            match["callee"] in CLASSES or (inner is not None and not inner.of_user)
        ):
            continue
        yield _of(
            one,
            f"{endings.who(one)} raised {one.words}{endings.at(inner)}: the call was written for "
            "another release",
            Fix(
                summary="install releases that were made for each other",
                paste="pip list | grep -iE 'torch|accelerate|transformers|trl|peft|deepspeed'\n"
                "pip check",
                caution="or write the call as the installed release has it",
            ),
        )
        return


def compiled_for_another(run: TrainingRun) -> Iterator[Finding]:
    """A compiled part that does not fit the library, or the system, that it is used with."""
    if not run.only_told:
        return
    for one in run.failures:
        match = COMPILED.search(f"{one.exception}: {one.message}")
        if match is None:
            continue
        package = match["package"] or "PACKAGE"
        yield _of(
            one,
            f"{endings.who(one)} raised {one.words}: it was compiled for another release",
            Fix(
                summary="install a build for the installed torch, CUDA and system",
                paste="python -m torch.utils.collect_env\n"
                f"pip install --force-reinstall --no-cache-dir --no-build-isolation {package}",
            ),
        )
        return


def _of(
    one: RankEnding, because: str, fix: Fix, confidence: Confidence = Confidence.LIKELY
) -> Finding:
    return Finding(
        title="Installed packages do not fit each other",
        severity=Severity.ERROR,
        confidence=confidence,
        because=because,
        where=Where.of([one]),
        fixes=(fix,),
    )
