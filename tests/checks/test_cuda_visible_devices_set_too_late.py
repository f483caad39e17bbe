from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Confidence, Severity
from ddoctor.script.reader import read
from tests.conftest import Findings

CAUSE = "cuda-visible-devices-set-too-late"
SET = 'os.environ["CUDA_VISIBLE_DEVICES"] = "1"\n'
HEAD = "import os\nimport torch\n"


@pytest.mark.parametrize(
    "source",
    [
        f"{HEAD}print(torch.cuda.is_available())\n{SET}",
        f"{HEAD}model = net().cuda()\n{SET}",
        f"{HEAD}def main():\n    net.to('cuda')\n    {SET}main()\n",
        f"{HEAD}device = 'cuda' if torch.cuda.is_available() else 'cpu'\n{SET}",
        # These ask for a GPU as they are imported.
        f"{HEAD}import bitsandbytes as bnb\n{SET}",
        f"{HEAD}import deepspeed\n{SET}",
        f"{HEAD}from mmcv import Config\n{SET}",
        f"{HEAD}from mmengine.runner import Runner\n{SET}",
        f"{HEAD}from torch.utils.cpp_extension import load\n{SET}",
    ],
)
def test_cuda_is_used_before(findings: Findings, tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    (finding,) = findings(CAUSE, read(tmp_path / "train.py", ()))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert SET.strip() in finding.because
    assert SET in finding.fixes[0].paste


@pytest.mark.parametrize(
    "source",
    [
        f"{HEAD}{SET}print(torch.cuda.is_available())\n",
        # The import alone reads nothing.
        f"{HEAD}{SET}",
        f"import torch\ndef device():\n    return torch.cuda.current_device()\nimport os\n{SET}",
        f"{HEAD}if debug:\n    torch.cuda.init()\n{SET}",
        f"{HEAD}torch.cuda.init()\nos.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n",
        f"{HEAD}print(torch.cuda.device_count())\n{SET}",  # NVML counts them.
        f"{HEAD}{SET}import deepspeed\n",
        f"{HEAD}from mmengine import Config\nimport mmcv\nimport transformers\n{SET}",
        f"{HEAD}def quantized():\n    import bitsandbytes\n{SET}",
    ],
)
def test_quiet_where_nothing_uses_cuda_before(
    findings: Findings, tmp_path: Path, source: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    assert findings(CAUSE, read(tmp_path / "train.py", ())) == ()
