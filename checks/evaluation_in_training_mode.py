"""The model is evaluated in training mode: dropout is active, and batch norm learns from the data.

A model is in training mode until ``model.eval()``. An evaluation without that call drops units at
random, and batch norm normalizes each batch by itself and adds it to its running statistics.
``torch.no_grad()`` changes none of this.

Symptoms: no error; the validation result is worse than the model is, differs from run to run, and
depends on the batch size.

To fix it, call ``model.eval()`` before each evaluation, and ``model.train()`` after it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import is_plain, shown
from ddoctor.evidence.script import Script
from ddoctor.models import Confidence, Finding, Fix, Severity


def in_the_source(script: Script) -> Iterator[Finding]:
    # A framework or a file that was not read may switch the mode.
    plain = is_plain(script, "accelerate", "TorchMetrics")
    for line in script.evaluated_in_training_mode[:1] if plain else ():
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=(
                f"{shown(line)} evaluates the model that the script trains, and no line calls "
                "eval(): its dropout stays active, and its batch norm uses and changes statistics"
            ),
            fixes=(
                Fix.python(
                    summary="evaluate in evaluation mode, and return to training mode",
                    paste="model.eval()\nwith torch.no_grad():\n    validate(model)\nmodel.train()",
                ),
            ),
        )
