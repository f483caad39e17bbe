"""collect_env, accelerate env, ds_report, pip and env: real ones, and by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.software import Environment, Software
from ddoctor.models import Severity
from tests.reading.conftest import Diagnose
from tests.reading.machine.conftest import Read
from tests.reading.machine.nvidia_smi_texts import Card, table


def printed(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def software(read: Read, text: str) -> Software:
    (section,) = read(text).all(Software)
    assert section.printed
    return section


def test_the_report_of_this_torch(read: Read) -> None:
    found = software(read, printed(sys.executable, "-m", "torch.utils.collect_env"))
    assert found.torch is not None
    assert found.torch.version == torch.__version__
    assert found.torch.cuda == torch.version.cuda
    assert found.python == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.ward
def test_the_report_of_this_accelerate(read: Read) -> None:
    found = software(read, printed(program("accelerate"), "env"))
    assert found.version("torch") == torch.__version__
    assert found.version("accelerate")


@pytest.mark.parametrize("arguments", [("list",), ("freeze",)])
def test_the_packages_of_this_environment(read: Read, arguments: tuple[str, ...]) -> None:
    text = printed(sys.executable, "-m", "pip", *arguments)
    found = software(read, f"$ pip {arguments[0]}\n{text}")
    assert found.version("torch") == torch.__version__
    assert found.version("accelerate")
    assert found.version("numpy")


def test_the_variables_of_this_shell(read: Read) -> None:
    environment = {**os.environ, "HOSTNAME": "node-3", "NCCL_DEBUG": "INFO", "A_TOKEN": "hf_secret"}
    text = subprocess.run(
        ["env"], capture_output=True, text=True, check=True, env=environment
    ).stdout
    (section,) = read(text).all(Environment)
    assert (section.host, section.get("NCCL_DEBUG")) == ("node-3", "INFO")
    assert section.get("A_TOKEN") is None


@pytest.mark.parametrize("command", ["export", "declare -x", "env | grep NCCL", "printenv"])
def test_a_command_at_a_prompt(read: Read, command: str) -> None:
    text = f"""ann@node-3:~$ {command}
declare -x NCCL_IB_HCA="mlx5_0,mlx5_1"
export NCCL_DEBUG=INFO
NCCL_P2P_LEVEL='SYS'
ann@node-3:~$ NCCL_DEBUG=WARN python train.py
"""
    (section,) = read(text).all(Environment)
    assert section.host == "node-3"
    assert [one.value for one in section.variables] == ["INFO", "mlx5_0,mlx5_1", "SYS"]


COLLECTED = """Collecting environment information...
PyTorch version: {torch}
Is debug build: False
CUDA used to build PyTorch: {cuda}
ROCM used to build PyTorch: N/A

OS: Ubuntu 22.04.3 LTS (x86_64)
Python version: 3.10.12 (main, Nov 20 2023, 15:14:05) [GCC 11.4.0] (64-bit runtime)
Python platform: Linux-5.15.0-91-generic-x86_64-with-glibc2.35
Is CUDA available: True
CUDA runtime version: 12.1.105
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version: {driver}
cuDNN version: Probably one of the following:
/usr/lib/x86_64-linux-gnu/libcudnn.so.8.9.0

Versions of relevant libraries:
[pip3] numpy==1.26.4
[pip3] nvidia-nccl-cu12==2.18.1
[pip3] torch=={torch}
[conda] Could not collect
"""


@pytest.mark.parametrize(
    ("version", "cuda", "driver"),
    [("2.1.0+cu121", "12.1", "535.104.05"), ("2.1.0", "12.1", "530.30.02")],
)
def test_a_sound_report(diagnose: Diagnose, version: str, cuda: str, driver: str) -> None:
    assert diagnose(COLLECTED.format(torch=version, cuda=cuda, driver=driver)).findings == ()


@pytest.mark.parametrize(
    ("version", "cuda", "driver", "words"),
    [
        ("2.1.0+cpu", "None", "535.104.05", "built without CUDA"),
        ("2.13.0", "Could not collect", "535.104.05", "built without CUDA"),
        ("2.9.0+cu130", "13.0", "470.57.02", "driver 470.57.02 supports at most"),
    ],
)
def test_a_torch_that_does_not_fit(
    diagnose: Diagnose, version: str, cuda: str, driver: str, words: str
) -> None:
    report = diagnose(COLLECTED.format(torch=version, cuda=cuda, driver=driver))
    assert report.findings[0].cause == "cuda-driver-or-arch-mismatch"
    assert words in report.findings[0].because


def test_all_of_a_report(read: Read) -> None:
    evidence = read(COLLECTED.format(torch="2.1.0+cu121", cuda="12.1", driver="535.104.05"))
    (found,) = evidence.all(Software)
    assert (found.python, found.nccl_version) == ("3.10.12", "2.18.1")
    (section,) = evidence.all(Gpus)
    assert [gpu.name for gpu in section.gpus] == ["NVIDIA A100-SXM4-80GB"] * 2


DEEPSPEED = """
--------------------------------------------------
DeepSpeed general environment info:
torch install path ............... ['/opt/conda/lib/python3.10/site-packages/torch']
torch version .................... 2.2.0+cu121
deepspeed install path ........... ['/opt/conda/lib/python3.10/site-packages/deepspeed']
deepspeed info ................... 0.14.1+f583d42, f583d42, master
torch cuda version ............... 12.1
torch hip version ................ None
nvcc version ..................... 12.1
deepspeed wheel compiled w. ...... torch 2.2, cuda 12.1
shared memory (/dev/shm) size .... 251.53 GB
"""


def test_a_report_of_deepspeed(read: Read) -> None:
    found = software(read, DEEPSPEED)
    assert found.torch is not None
    assert (found.torch.version, found.torch.cuda) == ("2.2.0+cu121", "12.1")
    assert found.version("deepspeed") == "0.14.1+f583d42"


PACKAGES = """Package                 Version
----------------------- -----------
accelerate              0.30.1
{more}
torch                   {torch}
"""


@pytest.mark.parametrize(
    ("torch", "more", "cuda"),
    [
        ("2.3.0+cu121", "", "12.1"),
        ("2.3.0+cpu", "", None),
        ("2.3.0", "nvidia-cuda-runtime-cu12 12.1.105", "12.1"),
        ("2.3.0", "numpy 1.26.4", ""),
    ],
)
def test_what_torch_was_built_for(read: Read, torch: str, more: str, cuda: str | None) -> None:
    found = software(read, PACKAGES.format(torch=torch, more=more))
    assert found.torch is not None
    assert found.torch.cuda == cuda


def test_an_unknown_build_is_no_build_without_cuda(diagnose: Diagnose) -> None:
    text = table("550.54.15", [Card()]) + PACKAGES.format(torch="2.3.0", more="numpy 1.26.4")
    assert diagnose(text).findings == ()


def test_two_wheels_of_nccl(diagnose: Diagnose) -> None:
    more = "nvidia-nccl-cu11 2.19.3\nnvidia-nccl-cu12 2.20.5"
    (finding,) = diagnose(PACKAGES.format(torch="2.3.0", more=more)).findings
    assert finding.cause == "nccl-library-mismatch"


@pytest.mark.parametrize(
    "text",
    [
        "numpy==1.26.4\ntorch==2.3.0\ntransformers==4.40.0\n",
        "RANK=0\nexport NCCL_P2P_DISABLE=1\npython train.py\n",
        "\n".join(f"option_{letter}={letter}" for letter in "abcdefghijkl"),
        "export NCCL_P2P_DISABLE=1\nexport NCCL_IB_DISABLE=1\ntorchrun train.py\n",
    ],
)
def test_what_a_project_asks_for_is_not_what_is_there(read: Read, text: str) -> None:
    evidence = read(text)
    assert (evidence.all(Software), evidence.all(Environment)) == ((), ())


def test_hosts_with_other_packages(read: Read, diagnose: Diagnose) -> None:
    one = "[root@node-1 ~]# pip list\n" + PACKAGES.format(torch="2.3.0+cu121", more="trl 0.9.0")
    other = "[root@node-2 ~]# pip list\n" + PACKAGES.format(torch="2.3.0+cu121", more="peft 0.9.0")
    # The second list is an excerpt: what it does not have may be there.
    report = diagnose(one + other)
    assert [one for one in report.findings if one.severity > Severity.NOTE] == []
    found = {section.host: section for section in read(one + other).all(Software)}
    assert set(found) == {"node-1", "node-2"}
