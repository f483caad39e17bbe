"""DDP searches for unused parameters in every step, but there are none.

With ``find_unused_parameters=True`` DDP walks the whole autograd graph after each forward pass. All
ranks then exchange the result before the gradients of the step are complete. A model that uses all
of its parameters in every step gains nothing from this. The Trainer of transformers enables it for
most models.

Symptoms: the torch warning "find_unused_parameters=True was specified in DDP constructor, but did
not find any unused parameters". Steps get shorter once the option is off.

To fix it, set ``find_unused_parameters=False``.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddoctor.analysis import log_events
from ddoctor.analysis.ddp_options import TAKES_OPTIONS, no_search
from ddoctor.analysis.framework_words import FrameworkWords
from ddoctor.analysis.script_source import shown, with_keywords
from ddoctor.evidence.log import Log
from ddoctor.evidence.script import Script
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("scaling-efficiency-low",)

# torch itself warns after the first iteration (reducer.cpp).
ENOUGH_INSPECTED = 3
# Half of the 10 % from which published detectors report a slowdown: this is not a comparison of
# noisy steps but the time of the search itself, and the fix saves all of it.
WARNING_SHARE = 0.05


def never_found_any(wrapping: Wrapping, steps: Steps, words: FrameworkWords) -> Iterator[Finding]:
    for models in wrapping.by_name(lambda one: one.find_unused_parameters and not one.static_graph):
        inspected = min(one.inspected_steps for one in models)
        found = any(one.unused or one.sometimes_unused for one in models)
        if inspected < ENOUGH_INSPECTED or found:
            continue
        timed = [median(one.find_unused_seconds) for one in models if one.find_unused_seconds]
        seconds = median(timed) if timed else 0.0
        share = seconds / steps.step if steps.step else 0.0
        part = f"{share:.1%} of the step"
        search = Observation(
            name="search of the autograd graph",
            value=round(1e3 * seconds, 3),
            unit="ms/step",
            expected=0,
            source=f"median of {len(models[0].find_unused_seconds)} steps",
        )
        yield Finding(
            severity=Severity.WARNING if share >= WARNING_SHARE else Severity.NOTE,
            confidence=Confidence.LIKELY,
            because=(
                f"find_unused_parameters is on for {models[0].name}, but every parameter got its "
                f"gradient in all {inspected} inspected steps on every rank"
                + (f"; the search takes {1e3 * seconds:.2f} ms, {part}" if timed else "")
            ),
            evidence=(
                Observation(
                    name="steps inspected",
                    value=inspected,
                    source="gradients that each rank computed itself",
                ),
                *([search] if timed else []),
            ),
            cost=Cost(value=round(share, 4), unit="share of step") if timed else None,
            fixes=(no_search(words, "switch off find_unused_parameters", part if timed else None),),
        )


def in_the_source(script: Script) -> Iterator[Finding]:
    """A static graph is searched once anyway; torch/nn/parallel/distributed.py."""
    for one in script.of(*TAKES_OPTIONS):
        words = ("find_unused_parameters", "static_graph")
        if all(one.argument(word) == "True" for word in words):
            yield Finding(
                severity=Severity.NOTE,
                confidence=Confidence.CERTAIN,
                because=f"{shown(one.at)} has static_graph=True, with which DDP finds unused "
                "parameters in the first step, and find_unused_parameters=True as well",
                fixes=(
                    Fix.python(
                        summary="leave the option out",
                        paste=with_keywords(one, find_unused_parameters=None),
                    ),
                ),
            )
            return


def in_a_log(log: Log) -> Iterator[Finding]:
    if event := log.first("no-unused-parameters"):
        yield log_events.finding(
            [event],
            "DDP searches the graph in each step, and has found no unused parameter",
            Fix.python(
                summary="leave the option out",
                paste="DistributedDataParallel(model, find_unused_parameters=False)",
                caution="keep it if later steps leave parameters out",
            ),
            severity=Severity.NOTE,
        )
