"""An evaluation leaves other weights in the model, so the training loses its own.

To evaluate an average of the weights, or the best ones so far, scripts copy these into the model.
Unless the training's own weights are put back, each evaluation resets the training to them. An
average moves slowly: the training then advances no faster than the average does.

Symptoms: no error; the training loss jumps after each evaluation, or hardly falls.

To fix it, keep the training's weights and put them back, or evaluate a copy of the model.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis import endings
from ddoctor.evidence.steps import Lines
from ddoctor.evidence.training import RankFlags, RankUse
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# One may load the best weights because the loss did not fall.
FEWEST = 2
EVALUATION = "evaluation"


def found(use: RankUse, lines: Lines | None) -> Iterator[Finding]:
    if not use.flags or not all(map(_always, use.flags)):
        return
    one = min(use.flags, key=lambda flags: flags.evaluations)
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=(
            f"after each of {one.evaluations} evaluations{_at(lines)}, the training continued with "
            "other weights than its last step had left; between other steps they stayed the same"
        ),
        evidence=(
            Observation(
                name="evaluations that changed the weights",
                value=one.evaluations_with_changes,
                expected=0,
                source="first numbers of a parameter, before and after",
            ),
        ),
        fixes=(
            Fix.python(
                summary="put the training's weights back after the evaluation",
                paste=(
                    "trained = [one.detach().clone() for one in model.parameters()]\n"
                    "average.copy_to(model)\n"
                    "evaluate(model)\n"
                    "with torch.no_grad():\n"
                    "    for one, before in zip(model.parameters(), trained, strict=True):\n"
                    "        one.copy_(before)"
                ),
            ),
            Fix.python(
                summary="or evaluate a copy, and leave the model alone",
                paste="evaluated = copy.deepcopy(model)\naverage.copy_to(evaluated)",
            ),
        ),
    )


def _always(flags: RankFlags) -> bool:
    changed = flags.evaluations_with_changes
    return changed >= FEWEST and changed == flags.evaluations and not flags.changed_otherwise


def _at(lines: Lines | None) -> str:
    """Where the evaluation is, to follow a word; empty: not known."""
    for rank in lines.ranks if lines is not None else ():
        for row in (one for one in rank.lines if one.phase == EVALUATION):
            return f"{endings.at(row.frame)}{endings.quoted(row.frame)}"
    return ""
