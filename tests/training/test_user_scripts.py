"""Scripts as people write them, which are not what was expected."""

from __future__ import annotations

import time

import pytest

from tests.training.conftest import MakeTraining
from tests.training.test_odd_scripts import HEAD, LOOP, alone

SPAWN = "import torch.multiprocessing as mp; mp.spawn(work, nprocs=2)"
SUBPROCESS = "subprocess.run([sys.executable, __file__, 'inner'], check=True)"
INDENTED = LOOP.replace("\n", "\n    ")


@pytest.mark.ward
@pytest.mark.parametrize("start", [SPAWN, SUBPROCESS], ids=["spawn", "subprocess"])
def test_a_training_in_processes_of_its_own_is_seen(training: MakeTraining, start: str) -> None:
    script = training(
        f"{HEAD}def work(rank):{INDENTED}\n"
        f"if __name__ == '__main__':\n    if 'inner' in sys.argv: work(0)\n    else: {start}\n"
    )
    with script.started(*alone("--seconds=12", "train.py")) as process:
        trained = script.outcome(process)
    first = trained.stdout.splitlines()[0]
    assert first.startswith("incomplete: no optimizer took a step within 12 s, but in processes")
    assert "let torchrun start the ranks" in " ".join(trained.stdout.split())
    assert trained.exit_code == 2, trained.stderr
    assert trained.left == []


def test_a_script_without_children_that_takes_no_step(training: MakeTraining) -> None:
    with training(HEAD).started(*alone("train.py")) as process:
        stdout, _ = process.communicate(timeout=100)
    assert stdout.startswith("incomplete: the script came to its end, and no optimizer took a step")
    assert "processes that it started" not in stdout
    assert "get it with" not in stdout


@pytest.mark.ward
def test_the_launcher_is_killed(training: MakeTraining) -> None:
    script = training(f"{HEAD}print('begun', flush=True)\n{LOOP}")
    with script.started(*script.under("--steps=10000")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(4)  # until the ranks have met
        process.kill()
        trained = script.outcome(process)
    assert "Traceback" not in trained.stderr
    assert any("has the launcher been killed?" in line for line in trained.complaints)
    assert trained.left == []


@pytest.mark.ward
def test_ranks_that_the_script_starts_itself_are_looked_at(training: MakeTraining) -> None:
    script = training(
        f"{HEAD}torch.set_num_threads(1)\n"
        "inner = 'inner' in sys.argv\n"
        "if not inner: other = subprocess.Popen([sys.executable, __file__, 'inner'])\n"
        "where = os.path.abspath('meeting')\n"
        "torch.distributed.init_process_group(\n"
        "    'gloo', f'file://{where}', rank=int(inner), world_size=2)\n"
        f"STEPS = 1_000_000\n{LOOP}\ntorch.distributed.barrier()\n"
    )
    with script.started(*alone("train.py")) as process:
        trained = script.outcome(process)
    assert "the script starts 2 ranks itself" in trained.stderr
    assert "sampled    2 of 2 ranks" in trained.stdout
    assert trained.exit_code == 0
    assert trained.left == []
