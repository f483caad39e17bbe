"""Arrays of a shell script, and what it sets in its branches."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.errors import DoctorError
from tests.launch.files import SCRIPT, told
from tests.launched import launched

LAST = 'torchrun --nproc-per-node 2 train.py "${ARGS[@]}"'


def arguments(folder: Path, script: str) -> str:
    launch = launched(folder, "bash job.sh", job_sh=f"{dedent(script)}\n{LAST}\n", train_py=SCRIPT)
    return " ".join(launch.arguments)


@pytest.mark.parametrize(
    ("script", "given"),
    [
        ("BS=32\nARGS=(--batch-size $BS --lr 1e-3)", "--batch-size 32 --lr 1e-3"),
        ("ARGS=( --verbose )\nARGS+=( --lr 1e-3 )", "--verbose --lr 1e-3"),
        ("ARGS=(\n  --verbose  # all\n  --lr 1e-3\n)", "--verbose --lr 1e-3"),
        ("ARGS=(--verbose)\nARGS+=(\n  --lr '1(e)'\n)\nX=1", "--verbose --lr 1(e)"),
        ('MORE=(--lr 2)\nARGS=(--verbose "${MORE[@]}")', "--verbose --lr 2"),
        ("ARGS=()", ""),
        ("declare -a ARGS=(--verbose)", "--verbose"),
        # Nothing sets it here.
        ("OTHER=(--verbose)", "${ARGS[@]}"),
        ('ARGS=(--verbose)\nif [ -n "$MORE" ]; then ARGS+=(--lr 2); fi', "--verbose"),
        ("ARGS=(--lr 1)\nif grep -q x y; then\n  ARGS=(--lr 2)\nfi", "${ARGS[@]}"),
    ],
)
def test_arrays(tmp_path: Path, script: str, given: str) -> None:
    assert arguments(tmp_path, script) == given


IN_ONE_TEXT = """
    RUN=(torchrun --nnodes=2
      --nproc-per-node=4)
    {}
"""


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        ("export ALL=\"${RUN[*]}\"\nsrun bash -c '$ALL -m train --lr 2'", "--lr 2"),
        ("ALL=${RUN[*]}\n$ALL -m train --lr 1", "--lr 1"),
        ('bash -lc "${RUN[*]} -m train"', ""),
        ('RUN+=(-m train --lr 3)\nbash -c "${RUN[*]}"', "--lr 3"),
        ("RUN+=(-m train)\n${RUN[*]} --lr 4", "--lr 4"),
    ],
)
def test_arrays_as_one_text(tmp_path: Path, lines: str, arguments: str) -> None:
    lines = lines.replace("\n", "\n    ")
    script = IN_ONE_TEXT.format(lines)
    launch = launched(tmp_path, "bash job.sh", job_sh=script, train_py=SCRIPT)
    assert (launch.hosts, launch.ranks, launch.script) == (2, 8, "train")
    assert " ".join(launch.arguments) == arguments


@pytest.mark.parametrize("given", ["${OTHER[*]}", "${RUN[0]}"])
def test_what_no_array_of_the_script_holds(tmp_path: Path, given: str) -> None:
    script = f'RUN=(torchrun train.py)\nbash -c "{given} --lr 1"\n'
    with pytest.raises(DoctorError, match="no launch of a training"):
        launched(tmp_path, "bash job.sh", job_sh=script, train_py=SCRIPT)


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ('if [ -n "$D" ]; then X=2; fi', "$X"),
        ('if [ "$1" = a ]; then X=2; else X=3; fi', "$X"),
        ('if [ -n "$X" ]; then X=2; fi', "2"),
        ('if [ -z "$N" ]; then X=2; fi', "2"),
        ('if [ ! -z "$N" ]; then X=2; fi', "1"),
        ("if [[ $X -gt 4 ]]; then X=2; elif [[ $X == 1 ]]; then X=3; else X=4; fi", "3"),
        ("if [ $X = 1 ]; then if [ $X = 2 ]; then X=5; fi; X=6; fi", "6"),
        ("if [ $X = 2 ]; then\n X=2\nelse\n if [ $X = 1 ]; then X=7; fi\nfi", "7"),
        # A scheduler may set it.
        ('if [ -z "$SLURM_JOB_ID" ]; then X=2; fi', "$X"),
    ],
)
def test_what_a_branch_sets(tmp_path: Path, script: str, value: str) -> None:
    assert arguments(tmp_path, f"X=1\n{script}\nARGS=(--lr $X)") == f"--lr {value}"


DEBUG = """
    {}
      export TORCH_DISTRIBUTED_DEBUG=DETAIL
    {}
    torchrun --nproc-per-node 2 train.py --lr 1e-3
"""


@pytest.mark.parametrize(
    ("before", "after", "counts", "depends"),
    [
        ("", "", True, False),
        ('if [ -n "$DEBUG" ]; then', "fi", False, True),
        ("if [ $# -gt 2 ]; then", "fi", False, True),
        ('if [ -z "$QUIET" ]; then', "fi", True, False),
        ("DEBUG=1\nif [ $DEBUG = 1 ]; then", "fi", True, False),
        ("DEBUG=0\nif [ $DEBUG = 1 ]; then", "fi", False, False),
        # The launch itself is in the branch.
        ('if [ -n "$DEBUG" ]; then', "torchrun train.py --lr 1\nexit\nfi\nX=1\n#", False, True),
    ],
)
def test_a_setting_for_debugging(
    tmp_path: Path, before: str, after: str, counts: bool, depends: bool
) -> None:
    script = dedent(DEBUG).format(before, after)
    launch = launched(tmp_path, "bash job.sh", job_sh=script, train_py=SCRIPT)
    assert (launch.get("env.TORCH_DISTRIBUTED_DEBUG") is not None) is counts
    shown = [one.value for one in launch.unresolved]
    assert ("TORCH_DISTRIBUTED_DEBUG=DETAIL" in shown) is depends
    causes = [one.cause for one in told(tmp_path, "bash job.sh", job_sh=script)]
    assert ("debug-settings-left-on" in causes) is counts


def test_what_the_branch_of_the_launch_sets(tmp_path: Path) -> None:
    own = 'if [ "$1" = a ]; then\n' + dedent(DEBUG).format("", "") + "fi"
    launch = launched(tmp_path, "bash job.sh", job_sh=own, train_py=SCRIPT)
    assert launch.get("env.TORCH_DISTRIBUTED_DEBUG") is not None
