from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Confidence, Severity
from ddoctor.script.reader import read
from tests.conftest import Findings

CAUSE = "grad-accum-loss-scaling"
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator({own})
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(batch)
        accelerator.backward({loss})
        optimizer.step()
"""
DEEPSPEED = """
import deepspeed
engine, *_ = deepspeed.initialize(model=model)
for batch in loader:
    loss = engine(batch){more}
    engine.backward(loss)
    engine.step()
"""
OWN = "gradient_accumulation_steps=4"


@pytest.mark.parametrize(
    "source",
    [
        ACCELERATE.format(own=OWN, loss="loss / args.gradient_accumulation_steps"),
        ACCELERATE.format(own=OWN, loss="loss / self.accum"),
        DEEPSPEED.format(more=" / engine.gradient_accumulation_steps()"),
        DEEPSPEED.format(more="\n    loss = loss / accumulation"),
    ],
)
def test_the_loss_is_divided_twice(findings: Findings, tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    (finding,) = findings(CAUSE, read(tmp_path / "train.py", ()))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert "backward divides it by them again" in finding.because
    assert finding.fixes[0].paste.endswith(".backward(loss)")


@pytest.mark.parametrize(
    "source",
    [
        ACCELERATE.format(own=OWN, loss="loss"),
        ACCELERATE.format(own=OWN, loss="loss / scale"),
        # accelerate divides by 1.
        ACCELERATE.format(own="", loss="loss / args.gradient_accumulation_steps"),
        DEEPSPEED.format(more=""),
        DEEPSPEED.format(more=" / len(batch)"),
        # Nothing else divides.
        DEEPSPEED.format(more=" / accumulation").replace("deepspeed", "other"),
    ],
)
def test_quiet_where_it_is_divided_once(findings: Findings, tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert findings(CAUSE, read(tmp_path / "train.py", ())) == ()
