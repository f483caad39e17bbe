"""The host memory of loading and saving the weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import transformers

from ddoctor.evidence.plan import HostPeaks, MemoryParts, PlanRow, Strategy
from ddoctor.forecast import request
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.host_peaks import host_peaks
from ddoctor.forecast.options import PlanRequest, Precision

LOADS = """
import sys, psutil, torch, transformers

transformers.LlamaForCausalLM  # imports its module
before = psutil.Process().memory_full_info().uss
dtype = getattr(torch, sys.argv[2])
model = transformers.LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=dtype)
grown = psutil.Process().memory_full_info().uss - before
print(grown / sum(one.nbytes for one in model.parameters()))
"""


def found(
    precision: Precision, strategy: Strategy, gpus: int = 16, reference: int = 0
) -> HostPeaks:
    model = Model(parameters=10, trainable=10, precision=precision, optimizer="adamw")
    parts = MemoryParts(reference=reference)
    return host_peaks(model, PlanRow(strategy=strategy, gpus=gpus, fit="fits", parts=parts))


@pytest.mark.parametrize(
    ("precision", "strategy", "gpus", "wanted"),
    [
        ("fp32", "one-gpu", 1, HostPeaks(ranks=1, loading=40)),
        ("bf16-mixed", "ddp", 2, HostPeaks(ranks=2, loading=40)),
        ("bf16-mixed", "fsdp", 16, HostPeaks(ranks=8, loading=40, saving=40)),
        ("bf16", "fsdp-hybrid", 16, HostPeaks(ranks=8, loading=20, mapped=True, saving=20)),
    ],
)
def test_what_the_ranks_of_a_host_take(
    precision: Precision, strategy: Strategy, gpus: int, wanted: HostPeaks
) -> None:
    assert found(precision, strategy, gpus) == wanted


def test_a_reference_is_loaded_as_well() -> None:
    assert found("bf16-mixed", "ddp", reference=1).loading == 40 + 20


def test_a_plan_has_them() -> None:
    wanted = PlanRequest(params="1B", activations=10**9, gpu="h100", gpus="8", precision="fp32")
    assert request.plan(wanted).host_peaks == HostPeaks(ranks=8, loading=4 * 10**9)


@pytest.mark.ward
@pytest.mark.skipif(not psutil.LINUX, reason="private memory is read as Linux counts it")
def test_weights_of_the_dtype_of_their_file_are_no_copy(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=8000, hidden_size=768, intermediate_size=2048, num_hidden_layers=6
    )
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    shares = [
        float(
            subprocess.run(
                [sys.executable, "-c", LOADS, str(tmp_path), dtype],
                capture_output=True,
                check=True,
                text=True,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            ).stdout
        )
        for dtype in ("bfloat16", "float32")
    ]
    assert shares[0] < 0.2
    assert shares[1] == pytest.approx(1.0, abs=0.15)
