"""Real faults of environment and software, through the whole command line."""

from __future__ import annotations

from pathlib import Path

from tests.faults.conftest import Doctor


def test_a_misspelt_nccl_variable_is_the_first_finding(doctor: Doctor) -> None:
    examined = doctor(environment={"NCCL_SOCKET_IFNAM": "eth0"})
    assert examined.first["cause"] == "environment-variable-invalid"
    assert "did you mean NCCL_SOCKET_IFNAME?" in examined.first["because"]
    assert "export NCCL_SOCKET_IFNAME=eth0" in examined.first["fixes"][0]["paste"]
    assert examined.exit_code == 1


def test_a_value_that_nccl_reads_as_zero(doctor: Doctor) -> None:
    examined = doctor(environment={"NCCL_IB_DISABLE": "true"})
    assert examined.first["cause"] == "environment-variable-invalid"
    assert examined.exit_code == 1


def test_debug_settings(doctor: Doctor) -> None:
    examined = doctor(environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert examined.first["cause"] == "debug-settings-left-on"
    assert examined.exit_code == 1


def test_nothing_of_a_sensible_environment_is_told(doctor: Doctor) -> None:
    examined = doctor(
        environment={
            "NCCL_DEBUG": "WARN",
            "NCCL_VERSION": "2.27.3",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "TOKENIZERS_PARALLELISM": "false",
            "CUDA_HOME": "/usr/local/cuda",
        }
    )
    ours = {"environment-variable-invalid", "debug-settings-left-on", "stopgap-left-on"}
    assert ours.isdisjoint(examined.causes)


def test_no_torch_still_gives_a_report(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('torch is not whole')")
    examined = doctor(environment={"PYTHONPATH": str(tmp_path), "NCCL_DEBGU": "INFO"})
    assert examined.first["cause"] == "environment-variable-invalid"
    assert not [row for row in examined.report["crashed"] if "software" in row["check"]]
