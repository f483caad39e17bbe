"""Launch files with random changes: one line says what is wrong, or a launch is read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.report.launch import starts
from tests.launch.files import FSDP, JOB, MANIFEST, SCRIPT, ZERO
from tests.launched import launched

NOISE = "\\\"'$`(){}[]<>|&;#:-*\n\t \x00\x1b9é"
COMMANDS = {
    "bash job.sbatch a b": "job_sbatch",
    "sbatch job.sbatch": "job_sbatch",
    "accelerate launch --config_file fsdp.yaml train.py": "fsdp_yaml",
    "deepspeed train.py --deepspeed ds.json": "ds_json",
    "pod.yaml": "pod_yaml",
    "torchrun train.py --lr 1": "train_py",
}
FILES = {
    "job_sbatch": JOB,
    "fsdp_yaml": FSDP,
    "ds_json": ZERO,
    "pod_yaml": MANIFEST,
    "train_py": SCRIPT,
}


def garbled(text: str, source: random.Random) -> str:
    for _ in range(source.randint(1, 6)):
        at, end = sorted(source.randrange(len(text) + 1) for _ in range(2))
        piece = source.choice([source.choice(NOISE) * source.randint(1, 30), text[at:end], ""])
        text = text[:at] + piece + text[source.choice([at, min(end, at + 20)]) :]
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_garbled_files(tmp_path: Path, command: str) -> None:
    source = random.Random(command)
    read, refusals = 0, list[str]()
    for _ in range(60):
        name = COMMANDS[command]
        try:
            launch = launched(tmp_path, command, **{**FILES, name: garbled(FILES[name], source)})
        except DoctorError as error:
            refusals.append(str(error))
            continue
        read += 1
        evidence = Evidence([launch])
        report = engine.examine(evidence, "doctor")
        assert report.crashed == ()
        assert [*starts(evidence)]
    assert read
    assert [one for one in refusals if "\n" in one] == []
