"""Functions, ``case`` and ``&&`` of a shell script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import SCRIPT, told
from tests.launched import launched

GPUS = "torchrun --standalone --nproc-per-node {} train.py"
OPTIONS = """
    GPUS=2
    case "${{1:-{default}}}" in
        small|tiny) GPUS=4; MORE="--lr 1" ;;
        "large")
            GPUS=8
            MORE="--lr 2"
            ;;
        *.yaml)
            GPUS=1 ;;
        *) GPUS=3 ;;
    esac
    torchrun --standalone --nproc-per-node $GPUS train.py $MORE
"""
MAIN = """
    {head} {{
        local count=$1
        shift
        prepare
        torchrun --standalone --nproc-per-node $count "$@"
    }}
    prepare() {{ export NCCL_DEBUG=INFO; }}
    function unused {{
        export NCCL_SOCKET_IFNAM=eth0
        torchrun --nproc-per-node 7 other.py
    }}
    {calls}
"""


@pytest.mark.parametrize(
    "head", ["launch()", "launch ()", "function launch", "function launch()", "launch()\n   "]
)
def test_a_function_that_launches(tmp_path: Path, head: str) -> None:
    script = MAIN.format(head=head, calls="launch 6 train.py --lr 1e-3")
    launch = launched(tmp_path, "bash run.sh", run_sh=script, train_py=SCRIPT)
    assert (launch.ranks, launch.script, launch.arguments) == (6, "train.py", ("--lr", "1e-3"))
    debug = launch.get("env.NCCL_DEBUG")
    assert debug is not None
    assert debug.value == "INFO"
    # What a function sets that nothing calls reaches no one.
    assert launch.get("env.NCCL_SOCKET_IFNAM") is None
    assert [one.cause for one in told(tmp_path, "bash run.sh", run_sh=script)] == []


@pytest.mark.parametrize(
    ("calls", "ranks"),
    [
        ('"$@"', 2),
        ("launch 4 train.py &\nwait", 4),
        ("if true; then\n launch 4 train.py\nfi", 4),
        ("for seed in 1 2; do\n launch 4 train.py\ndone", 4),
        ("launch 4 train.py 2>&1 | tee log", 4),
        ("test -f data || exit 1\nlaunch 4 train.py", 4),
        # The last one counts.
        ("launch 4 train.py\nlaunch 2 train.py", 2),
        # Which function a program runs is not known: none comes before a plain launch.
        (f"{GPUS.format(5)}\ntrap launch EXIT", 5),
        ("trap launch EXIT", 7),
    ],
)
def test_what_calls_a_function(tmp_path: Path, calls: str, ranks: int) -> None:
    script = MAIN.format(head="launch()", calls=calls)
    command = "bash run.sh launch 2 train.py"
    launch = launched(tmp_path, command, run_sh=script, train_py=SCRIPT)
    assert (launch.ranks, launch.arguments) == (ranks, ())


@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        ("shift", ("--lr", "1")),
        ("shift 2", ("1",)),
        # How often a loop runs, and whether a branch does, is not known.
        ('while [ -n "$1" ]; do shift; done', ("a", "--lr", "1")),
        ('if [ -n "$MODE" ]; then shift; fi', ("a", "--lr", "1")),
    ],
)
def test_what_shift_drops(tmp_path: Path, lines: str, arguments: tuple[str, ...]) -> None:
    script = f'{lines}\ntorchrun --nproc-per-node 2 train.py "$@"\n'
    launch = launched(tmp_path, "bash run.sh a --lr 1", run_sh=script, train_py=SCRIPT)
    assert launch.arguments == arguments


def test_local_variables_end_with_their_function(tmp_path: Path) -> None:
    script = "GPUS=4\nf() { local GPUS=2; echo $GPUS; }\nf\n" + GPUS.format("$GPUS")
    assert launched(tmp_path, "bash run.sh", run_sh=script, train_py=SCRIPT).ranks == 4
    script = script.replace("local ", "")
    assert launched(tmp_path, "bash run.sh", run_sh=script, train_py=SCRIPT).ranks == 2


@pytest.mark.parametrize("calls", ["f", "g"])
def test_functions_that_call_each_other_end(tmp_path: Path, calls: str) -> None:
    script = f"f() {{ g; g; f; }}\ng() {{ f; f; g; }}\n{calls}\n{GPUS.format(4)}"
    assert launched(tmp_path, "bash run.sh", run_sh=script, train_py=SCRIPT).ranks == 4


@pytest.mark.parametrize(
    ("given", "default", "ranks", "arguments"),
    [
        ("small", "", 4, ("--lr", "1")),
        ("tiny", "", 4, ("--lr", "1")),
        ("large", "", 8, ("--lr", "2")),
        ("", "large", 8, ("--lr", "2")),
        ("a.yaml", "", 1, ("$MORE",)),
        ("other", "", 3, ("$MORE",)),
        # Which arm runs is not known, so neither is what it sets.
        ("", "$MODE", None, ("$MORE",)),
    ],
)
def test_a_case(
    tmp_path: Path, given: str, default: str, ranks: int | None, arguments: tuple[str, ...]
) -> None:
    script = OPTIONS.format(default=default)
    launch = launched(tmp_path, f"bash run.sh {given}".strip(), run_sh=script, train_py=SCRIPT)
    assert (launch.ranks, launch.arguments) == (ranks, arguments)


@pytest.mark.parametrize(("given", "ranks"), [("train", 8), ("eval", 1), ("", 1)])
def test_launches_in_the_arms_of_a_case(tmp_path: Path, given: str, ranks: int) -> None:
    arms = f"case $1 in\n train) {GPUS.format(8)} ;;\n eval) {GPUS.format(1)} ;;\nesac\n"
    launch = launched(tmp_path, f"bash run.sh {given}".strip(), run_sh=arms, train_py=SCRIPT)
    assert launch.ranks == ranks


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        ("DEBUG=0\n[[ $DEBUG == 1 ]] && GPUS=1", 8),
        ("DEBUG=1\n[[ $DEBUG == 1 ]] && GPUS=1", 1),
        ("DEBUG=1\n[ $DEBUG = 1 ] || GPUS=1", 8),
        ("DEBUG=1\n! [ $DEBUG = 1 ] || GPUS=1", 1),
        ("DEBUG=1\n[ $DEBUG = 1 ] && GPUS=1 || GPUS=2", 1),
        ("DEBUG=0\n[ $DEBUG = 1 ] && GPUS=1 || GPUS=2", 2),
        ("DEBUG=1\n[[ $DEBUG = 1 && $GPUS -gt 4 ]] && GPUS=1", 1),
        ("DEBUG=1\n[[ $DEBUG = 0 || $GPUS -lt 4 ]] && GPUS=1", 8),
        ("DEBUG=1\n[[ $DEBUG = 1 ]] &&\n  GPUS=1", 1),
        ("cd here && GPUS=2", 2),
        ('[ -n "$SLURM_JOB_ID" ] && GPUS=1', None),
        ("if [[ $GPUS -eq 8 && $GPUS != 4 ]]; then GPUS=3; else GPUS=5; fi", 3),
        ("if [[ $GPUS -eq 8 ]]; then\n [[ 1 == 2 ]] && GPUS=1\nfi", 8),
    ],
)
def test_commands_after_a_test(tmp_path: Path, lines: str, ranks: int | None) -> None:
    script = f"GPUS=8\n{lines}\n{GPUS.format('$GPUS')}"
    assert launched(tmp_path, "bash run.sh", run_sh=script, train_py=SCRIPT).ranks == ranks


def test_a_branch_that_does_not_run(tmp_path: Path) -> None:
    script = f"MODE=one\nif [ $MODE = one ]; then {GPUS.format(1)}; else {GPUS.format(8)}; fi\n"
    assert launched(tmp_path, "bash run.sh", run_sh=script, train_py=SCRIPT).ranks == 1
