from __future__ import annotations

from pathlib import Path

from ddoctor.collect.environment import environment
from ddoctor.evidence.software import Environment


def collected(tmp_path: Path, **variables: str) -> Environment:
    return environment(variables, root=tmp_path)


def test_takes_what_steers_a_run_and_nothing_else(tmp_path: Path) -> None:
    section = collected(
        tmp_path,
        NCCL_DEBUG="INFO",
        TORCH_LOGS="dynamo",
        OMP_NUM_THREADS="4",
        FI_PROVIDER="efa",
        MASTER_ADDR="node-1",
        OMPI_COMM_WORLD_RANK="0",
        SLURM_NNODES="2",
        TOKENIZERS_PARALLELISM="false",
        nccl_debug="INFO",
        HOME="/nowhere",
        PATH="/bin",
        MY_SETTING="x",
        SLURM_JOB_USER="somebody",
        HF_TOKEN="hf_abcdefghijklmnopqrst",
        WANDB_API_KEY="0123456789",
        AWS_SECRET_ACCESS_KEY="x",
    )
    assert [one.name for one in section.variables] == [
        "FI_PROVIDER",
        "MASTER_ADDR",
        "NCCL_DEBUG",
        "OMPI_COMM_WORLD_RANK",
        "OMP_NUM_THREADS",
        "SLURM_NNODES",
        "TOKENIZERS_PARALLELISM",
        "TORCH_LOGS",
        "nccl_debug",
    ]
    assert section.get("TOKENIZERS_PARALLELISM") == "false"
    assert section.get("PATH") is None


def test_the_files_that_nccl_reads(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text(
        "# set by the administrator\nNCCL_IB_HCA==mlx5_0\nNCCL_DEBUG=WARN\nNCCL_NET=IB\nnothing\n"
    )
    (tmp_path / "home/me").mkdir(parents=True)
    (tmp_path / "home/me/.nccl.conf").write_text("NCCL_DEBUG=VERSION\nNCCL_NET=Socket")
    section = collected(tmp_path, HOME="/home/me", NCCL_NET="Mine")
    origins = {one.name: (one.value, one.origin) for one in section.variables}
    assert origins == {
        "NCCL_DEBUG": ("VERSION", "/home/me/.nccl.conf"),
        "NCCL_IB_HCA": ("=mlx5_0", "/etc/nccl.conf"),
        "NCCL_NET": ("Mine", ""),
    }


def test_a_file_named_by_nccl_conf_file_takes_the_place_of_the_own_one(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=WARN")
    (tmp_path / "mine.conf").write_text("NCCL_DEBUG=INFO")
    section = collected(tmp_path, HOME="/", NCCL_CONF_FILE="/mine.conf")
    assert section.get("NCCL_DEBUG") == "INFO"


def test_sees_which_paths_are_not_there(tmp_path: Path) -> None:
    section = collected(
        tmp_path,
        NCCL_TOPO_FILE=f"{tmp_path}/absent.xml",
        NCCL_GRAPH_FILE=f"{tmp_path}/absent/graph.xml",
        NCCL_DEBUG_FILE=f"{tmp_path}/%h/log.%p",
        HF_HOME=str(tmp_path),
        TORCH_HOME="~/cache",
        LD_LIBRARY_PATH=f"{tmp_path}/absent:/nowhere",
        NCCL_NET="IB",
    )
    assert {one.name: one.missing for one in section.variables if one.missing} == {
        "NCCL_TOPO_FILE": "file",
        "NCCL_GRAPH_FILE": "folder",
        "TORCH_HOME": "folder",
    }


def test_a_binary_or_unreadable_configuration_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "etc/nccl.conf").mkdir(parents=True)
    (tmp_path / ".nccl.conf").write_bytes(b"\xff\xfe\nNCCL_DEBUG=INFO\n")
    assert collected(tmp_path, HOME="/").get("NCCL_DEBUG") == "INFO"
