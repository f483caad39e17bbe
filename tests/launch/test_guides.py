"""Launch lines of guides for users, with the traps that they have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddoctor import engine
from ddoctor.evidence.network import Address, Interface, Network, ResolvedName
from ddoctor.evidence.section import Evidence
from ddoctor.models import Finding, Severity
from ddoctor.report.launch import starts
from tests.launch.files import FSDP, SCRIPT, told
from tests.launched import launched

LEROBOT = """
@dataclass
class TrainPipelineConfig:
    dataset: DatasetConfig
    seed: int | None = 1000
    batch_size: int = 8
    steps: int = 100_000
    save_freq: int = 20_000
    optimizer: OptimizerConfig | None = None
"""
WHICH = "accelerate launch {} $(which lerobot-train) --policy.type=act {}\n"
SHELL = """
GPUS=${GPUS:-4}
accelerate launch --num_processes=$GPUS --mixed_precision=bf16 train.py "$@"
"""


def head(folder: Path, command: str, **texts: str) -> dict[str, str]:
    return dict(starts(Evidence([launched(folder, command, **{"train_py": SCRIPT, **texts})])))


@pytest.mark.parametrize(
    ("command", "begins", "texts"),
    [
        (
            "bash job.sh",
            "1 host × 2 ranks, by accelerate in job.sh",
            {"job_sh": WHICH.format("--multi_gpu --num_processes=2", "--wandb.enable=true")},
        ),
        (
            "bash job.sh",
            "1 host × a rank for each GPU, by accelerate in job.sh",
            {"job_sh": WHICH.format("", "")},
        ),
        (
            "accelerate launch --config_file fsdp.yaml --num_processes=4 train.py",
            "1 host × 4 ranks, by accelerate",
            {"fsdp_yaml": FSDP},
        ),
        (
            "accelerate launch --num_processes=4 --mixed_precision=bf16 --multi_gpu train.py "
            "--config x.yaml policy.pretrained_path=a batch_size=16",
            "1 host × 4 ranks, by accelerate",
            {"x_yaml": "batch_size: 8\n"},
        ),
        ("torchrun --nproc_per_node=4 train.py", "1 host × 4 ranks, by torchrun", {}),
        (
            "python -m torch.distributed.launch --nproc_per_node=4 --master_port=29500 train.py",
            "1 host × 4 ranks, by torch.distributed.launch",
            {},
        ),
        (
            "accelerate launch --num_processes=8 --num_machines=2 --machine_rank=0 "
            "--main_process_ip=192.168.1.100 --main_process_port=29500 train.py",
            "2 hosts × 4 ranks, by accelerate",
            {},
        ),
        (
            "torchrun --nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr=192.168.1.100 "
            "--master_port=29500 train.py",
            "2 hosts × 4 ranks, by torchrun",
            {},
        ),
        (
            "bash each.sh",
            "4 ranks, by python in each.sh",
            {"each_sh": "for i in 0 1 2 3; do RANK=$i WORLD_SIZE=4 python train.py & done\n"},
        ),
        ("bash scripts.sh --config x", "1 host × 4 ranks, by accelerate", {"scripts_sh": SHELL}),
        (
            "hf jobs run --flavor a10g-large IMAGE bash -c 'nvidia-smi && lerobot-train --steps=5'",
            "one process, by python",
            {},
        ),
    ],
)
def test_what_starts(tmp_path: Path, command: str, begins: str, texts: dict[str, str]) -> None:
    assert head(tmp_path, command, **texts)["starts"].startswith(begins)


def test_dotted_overrides_without_dashes_beat_the_file(tmp_path: Path) -> None:
    command = "torchrun --nproc-per-node=4 train.py --config x.yaml batch_size=16"
    found = head(tmp_path, command, x_yaml="batch_size: 8\nsteps: 100\n")
    assert found["batch"].startswith("16 a rank (the command line) × 4 ranks = 64 samples")
    assert found["length"] == "100 optimizer steps (x.yaml:2)"


def test_the_defaults_of_the_installed_lerobot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "lerobot" / "configs"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "train.py").write_text(LEROBOT)
    monkeypatch.syspath_prepend(tmp_path / "site")
    job = WHICH.format("--num_processes=2", "--steps=50000")
    found = head(tmp_path, "bash job.sh", job_sh=job)
    assert found["batch"].startswith("8 a rank (the default of lerobot-train) × 2 ranks = 16")
    assert found["length"] == "50,000 optimizer steps (job.sh:1), saves every 20,000"


@pytest.mark.parametrize(
    ("command", "says", "paste"),
    [
        ("--num_machines N --machine_rank 0", "hosts is 'N'", "--num_machines 2"),
        ("--num_machines 2 --machine_rank RANK", "host rank is 'RANK'", "--machine_rank 0  # on"),
    ],
)
def test_placeholders_that_are_left(tmp_path: Path, command: str, says: str, paste: str) -> None:
    command = f"accelerate launch {command} --num_processes 8 --main_process_ip a train.py"
    found = told(tmp_path, command, gpus=8)
    (mistake,) = [one for one in found if says in one.because]
    assert mistake.severity is Severity.ERROR
    assert mistake.fixes[0].paste.startswith(paste)


def test_a_comment_behind_a_backslash(tmp_path: Path) -> None:
    job = "accelerate launch --machine_rank=0 \\  # 0 for the first\n  train.py\n"
    found = told(tmp_path, "bash job.sh", gpus=8, job_sh=job)
    assert "a comment follows its backslash" in found[0].because


def card(name: str, address: str) -> Interface:
    return Interface(
        name=name,
        kind="loopback" if name == "lo" else "ethernet",
        up=True,
        running=True,
        addresses=(Address(address=address, prefix=24),),
        mtu=1500,
    )


HERE = Network(
    interfaces=(card("lo", "127.0.0.1"), card("eth0", "192.168.1.7")),
    own_name=ResolvedName(name="node-1", addresses=("192.168.1.7",)),
)


def elsewhere(folder: Path, command: str, **texts: str) -> list[Finding]:
    launch = launched(folder, command, **{"train_py": SCRIPT, **texts})
    report = engine.examine(Evidence([launch, HERE]), "doctor")
    assert report.crashed == ()
    return [one for one in report.findings if "not one of this host" in one.title]


TORCHRUN = "torchrun --nnodes=2 --nproc-per-node=4"
ACCELERATE = "accelerate launch --num_machines 2 --num_processes 8 --main_process_port 29500"


@pytest.mark.parametrize(
    "command",
    [
        f"{TORCHRUN} --node-rank=0 --master-addr=192.168.1.100 train.py",
        f"{TORCHRUN} --node-rank=0 --rdzv-endpoint=192.168.1.100:29500 train.py",
        f"{TORCHRUN} --node-rank=0 --master-addr=fe80::1 train.py",
        f"{ACCELERATE} --machine_rank 0 --main_process_ip 192.168.1.100 train.py",
    ],
)
def test_the_first_host_is_another_one(tmp_path: Path, command: str) -> None:
    (note,) = elsewhere(tmp_path, command)
    assert note.severity is Severity.NOTE
    assert note.fixes[0].paste == "192.168.1.7"


@pytest.mark.parametrize(
    "command",
    [
        f"{TORCHRUN} --node-rank=0 --master-addr=192.168.1.7 train.py",
        f"{TORCHRUN} --node-rank=0 --rdzv-endpoint=192.168.1.7:29500 train.py",
        f"{TORCHRUN} --node-rank=1 --master-addr=192.168.1.100 train.py",
        f"{TORCHRUN} --node-rank=0 --master-addr=node-1 train.py",
        f"{TORCHRUN} --rdzv-backend=c10d --rdzv-endpoint=192.168.1.100:29500 train.py",
        "torchrun --node-rank=0 --master-addr=192.168.1.100 train.py",
        f"{ACCELERATE} --machine_rank 0 --main_process_ip 192.168.1.7 train.py",
        "bash job.sh",
    ],
)
def test_the_first_host_is_this_one_or_unknown(tmp_path: Path, command: str) -> None:
    job = f"{TORCHRUN} --node-rank=0 --master-addr=192.168.1.100 train.py\n"
    assert elsewhere(tmp_path, command, job_sh=job) == []


def test_a_script_under_ddoctor(tmp_path: Path) -> None:
    command = "torchrun --nnodes 2:4 --nproc-per-node 8 -m ddoctor.probe {} train.py --batch_size 6"
    lines = head(tmp_path, command.format("run --steps all --html a.html"))
    assert lines["starts"] == "2 to 4 hosts × 8 ranks, by torchrun"
    assert lines["script"] == "train.py"
    assert lines["batch"].startswith("6 samples a rank")
    bare = head(tmp_path, "torchrun --nproc-per-node 2 -m ddoctor.probe clock_skew")
    assert bare["script"] == "-m ddoctor.probe"


def test_the_same_batch_in_other_ways(tmp_path: Path) -> None:
    lines = head(
        tmp_path, "torchrun --nproc-per-node 4 train.py --batch_size 4 --accumulation_steps 6"
    )
    assert lines["batch"].endswith("= 96 samples a step")
    told = lines["same batch"].removeprefix("a rank's micro-batch × accumulation: ")
    assert told == "1 × 24, 2 × 12, 8 × 3"
    for choice in told.split(", "):
        micro, times = map(int, choice.split(" × "))
        assert micro * times * 4 == 96
    assert "same batch" not in head(tmp_path, "torchrun --nproc-per-node 4 train.py --batch_size 1")
    assert "same batch" not in head(
        tmp_path, "torchrun --nproc-per-node 4 train.py --batch_size auto"
    )


@pytest.mark.parametrize("given", ["--dataset.root=d", "--dataset.repo_id=me/arm"])
def test_the_epochs_of_a_dataset_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "cache"))
    for place in (tmp_path / "d", tmp_path / "cache/me/arm"):
        (place / "meta").mkdir(parents=True)
        # 50 episodes of 30 s at 30 frames a second.
        (place / "meta/info.json").write_text('{"fps": 30, "total_frames": 45000}')
    command = f"torchrun --nproc-per-node 2 train.py {given} --batch_size=8 --steps=20000"
    (told,) = [text for label, text in head(tmp_path, command).items() if label == "length"]
    assert "7.1 epochs, an epoch of 45,000 samples is 2,813 steps" in told


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"total_frames": "many"}', None])
def test_a_dataset_without_a_length(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "d/meta").mkdir(parents=True)
        (tmp_path / "d/meta/info.json").write_text(text)
    command = "torchrun --nproc-per-node 2 train.py --dataset.root=d --batch_size=8 --steps=200"
    assert head(tmp_path, command)["length"] == "200 optimizer steps (the command line)"


def test_the_shell_script_of_the_guide(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs/guides/doctor.md"
    part = guide.read_text(encoding="utf-8").partition("Of this `launch.sh`")[2]
    script, shown = re.findall(r"```(?:sh)?\n(.*?)```", part, re.DOTALL)[:2]
    found = head(tmp_path, "bash launch.sh debug", launch_sh=script, train_py="import torch\n")
    rows = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in shown.splitlines())
    assert rows == found
