"""No secret of a launch line or of its files is in a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle, redaction
from ddoctor.evidence.section import Evidence
from ddoctor.report import html, markdown, schema
from tests.launched import launched

# Made up, in the forms of Hugging Face, GitHub and AWS; the last has only a telling name.
SECRETS = (
    "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3f",
    "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "AKIA" + "QWERTYUIOPASDFGH",
    "correct-horse",
)
FILES = {
    "run_sh": f"export HF_TOKEN={SECRETS[0]}\nNCCL_API_PASSWORD={SECRETS[3]} "
    f"torchrun --nprocs {SECRETS[1]} train.py --wandb-key={SECRETS[3]} \\ # {SECRETS[2]}\n",
    "curl_sh": f"sshpass -p {SECRETS[3]} torchrun train.py --user 'me:{SECRETS[3]}'\n",
    "a_yaml": f"distributed_type: MULTI_GPU\nnum_processes: {SECRETS[0]}\nhub_tokn: {SECRETS[1]}\n",
    "train_py": "import argparse\nparser = argparse.ArgumentParser()\n"
    f'parser.add_argument("--key", default="{SECRETS[0]}")\nparser.parse_args()\n',
    "pod_yaml": "spec:\n  containers:\n  - command: [torchrun, train.py]\n    env:\n"
    f"    - {{name: NCCL_TOKEN, value: {SECRETS[3]}}}\n"
    f"    - {{name: CUDA_A, value: {SECRETS[2]}}}\n",
}


@pytest.mark.parametrize(
    "command",
    [
        "bash run.sh",
        "accelerate launch --config_file a.yaml train.py",
        "pod.yaml",
        f"HF_TOKEN={SECRETS[0]} torchrun --master-addr {SECRETS[1]} train.py --kay {SECRETS[0]}",
        f"python train.py -u me:{SECRETS[3]} --proxy-user=me:{SECRETS[0]}",
        "bash curl.sh",
        f"python train.py --password {SECRETS[3]} batch_size={SECRETS[2]}",
    ],
)
def test_no_output_has_a_secret(tmp_path: Path, command: str) -> None:
    evidence = Evidence([launched(tmp_path, command, **FILES)])
    report = engine.examine(evidence, "doctor")
    bundle.write(tmp_path / "bundle.json", evidence)
    texts = (
        (tmp_path / "bundle.json").read_text(),
        markdown.render(report, evidence),
        html.render(report, evidence),
        schema.render(report),
    )
    for text in texts:
        assert [secret for secret in SECRETS if secret in text] == []


def test_an_error_has_none(tmp_path: Path) -> None:
    with pytest.raises(DoctorError) as raised:
        launched(tmp_path, f"mystery --token {SECRETS[0]}")
    # As the command line prints it.
    assert SECRETS[0] not in redaction.text(str(raised.value))
