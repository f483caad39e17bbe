"""Environments that Python prints, and the tasks of a Slurm step in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pprint import pformat

import pytest

from ddoctor.evidence.software import Environment
from ddoctor.models import Confidence, Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read

Form = Callable[[Mapping[str, str]], str]
SOUND = {
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "HOME": "/home/ann",
    "HOSTNAME": "node-3",
    "LESSOPEN": "| /usr/bin/lesspipe '%s'",
    "LS_COLORS": ":".join(f"*.{kind}=01;31" for kind in ("tar", "tgz", "arc", "zip") * 12),
    "NCCL_DEBUG": "WARN",
    "PATH": "/usr/bin:/bin",
    "SLURM_JOB_ID": "4711",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4",
    "SLURM_STEP_NUM_TASKS": "8",
}
ONE_TASK = {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NNODES": "1"}


def of_a_shell(values: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in values.items())


FORMS: Mapping[str, Form] = {
    "repr": lambda values: f"environ({dict(values)!r})",
    "pprint of os.environ": lambda values: f"environ({pformat(dict(values))})",
    "pprint": lambda values: pformat(dict(values)),
    "with a word before": lambda values: f"env: environ({dict(values)!r})",
    "without the first line": lambda values: pformat({"A": "b", **values}).partition("\n")[2],
    "json": lambda values: json.dumps(dict(values)),
    "json in lines": lambda values: json.dumps(dict(values), indent=2),
    "env": of_a_shell,
}


@pytest.fixture(params=[*FORMS.values()], ids=[*FORMS])
def printed(request: pytest.FixtureRequest) -> Form:
    form: Form = request.param
    return form


def test_the_variables_by_hand(read: Read, printed: Form) -> None:
    text = f"starting\n{printed({**SOUND, 'A_TOKEN': 'hf_secret'})}\nstep 1 loss 2.3\n"
    (section,) = read(text).all(Environment)
    assert section.host == "node-3"
    assert section.get("NCCL_DEBUG") == "WARN"
    assert section.get("SLURM_NTASKS_PER_NODE") == "4"
    assert section.get("A_TOKEN") is None


def test_the_variables_of_this_process(read: Read) -> None:
    values = {**os.environ, "HOSTNAME": "node-3", "NCCL_DEBUG": "INFO"}
    (section,) = read(f"environ({pformat(values)})\n").all(Environment)
    assert section.get("NCCL_DEBUG") == "INFO"


def test_far_down_in_a_log(read: Read) -> None:
    text = "step 1 loss 2.3\n" * 3_000 + f"environ({pformat(SOUND)})\n"
    (section,) = read(text).all(Environment)
    assert section.get("NCCL_DEBUG") == "WARN"


@pytest.mark.parametrize(
    "text",
    [
        str(dict.fromkeys(("loss", "epoch", *"abcdefgh"), "2.3")) + "\n",
        '{"env": {"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0"}}\n',
        '{\n  "CUDA_VISIBLE_DEVICES": "0",\n  "NCCL_DEBUG": "INFO"\n}\n',
        pformat({f"NCCL_{name}": "1" for name in "ABCDEFGHIJ"}),
        "environ({'PATH': '/usr/bin'})\n",
    ],
)
def test_what_is_no_environment(read: Read, text: str) -> None:
    assert read(text).all(Environment) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            ONE_TASK,
            "started 1 task (SLURM_STEP_NUM_TASKS), and the job asks for 4 on each node, 4 in",
        ),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "2 tasks (SLURM_STEP_NUM_TASKS)"),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NNODES": ""}, "1 task (SLURM_STEP_NUM_TASKS)"),
    ],
)
def test_fewer_tasks_than_asked_for(
    diagnose: Diagnose, printed: Form, changes: Mapping[str, str], said: str
) -> None:
    (finding,) = diagnose(printed(SOUND | {**changes})).findings
    assert (finding.cause, finding.severity) == ("world-size-mismatch", Severity.WARNING)
    assert finding.confidence is Confidence.POSSIBLE
    assert said in finding.because


def test_a_world_size_that_nobody_starts_is_likely(diagnose: Diagnose) -> None:
    (finding,) = diagnose(of_a_shell({**SOUND, **ONE_TASK, "WORLD_SIZE": "4"})).findings
    assert finding.confidence is Confidence.LIKELY
    assert "WORLD_SIZE is 4" in finding.because


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**ONE_TASK, "SLURM_NTASKS_PER_NODE": "1"},
        {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS_PER_NODE": "1"},
        {**ONE_TASK, "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"},
        {**ONE_TASK, "ACCELERATE_MIXED_PRECISION": "bf16"},
        {**ONE_TASK, "SLURM_PTY_PORT": "40001"},
        {**ONE_TASK, "SLURM_NTASKS_PER_NODE": "4(x2)"},
        {**ONE_TASK, "SLURM_NTASKS_PER_NODE": ""},
        {"SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "16"},
        {"SLURM_NTASKS": "", "SLURM_STEP_NUM_TASKS": ""},
    ],
)
def test_sound_steps_are_quiet(
    diagnose: Diagnose, printed: Form, changes: Mapping[str, str]
) -> None:
    assert diagnose(printed({**SOUND, **changes})).findings == ()
