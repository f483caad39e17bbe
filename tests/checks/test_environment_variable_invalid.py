from __future__ import annotations

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.secret_forms import HIDDEN
from ddoctor.evidence.software import Environment, Software, Torch, Variable
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "environment-variable-invalid"


def environment(**values: str) -> Environment:
    return Environment(
        host="a",
        variables=tuple(Variable(name=name, value=value) for name, value in values.items()),
    )


def with_nccl(version: str) -> Software:
    return Software(
        host="a", python="3.11", torch=Torch(version="2.8.0", cuda="12.8", nccl=version)
    )


def gpus(count: int, *, mig: bool = False) -> Gpus:
    return Gpus(
        host="a",
        driver="570.86.15",
        gpus=tuple(
            Gpu(index=index, name="H100", memory_total=80, memory_used=0, mig=mig)
            for index in range(count)
        ),
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("NCCL_DEBGU", "NCCL_DEBUG"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("NCCL_SOCKETIFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCCL_DISABLE_P2P", "NCCL_P2P_DISABLE"),
        ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ("NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SECS", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
        ("TORCH_DISTRIBUTED_DEBGU", "TORCH_DISTRIBUTED_DEBUG"),
        ("GLOO_SOCKET_IFACENAME", "GLOO_SOCKET_IFNAME"),
        ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
        ("ACCELERATE_MIXED_PRECISON", "ACCELERATE_MIXED_PRECISION"),
        ("FSDP_SHARDING_STRATEGIE", "FSDP_SHARDING_STRATEGY"),
        ("CUDA_VISIBLE_DEVICE", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_names_what_a_misspelt_name_meant(findings: Findings, wrong: str, right: str) -> None:
    (finding,) = findings(CAUSE, environment(**{wrong: "7"}))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.LIKELY
    assert f"did you mean {right}?" in finding.because
    assert finding.fixes[0].paste == f"unset {wrong}\nexport {right}=7"


def test_a_setting_in_a_file_is_mended_there(findings: Findings) -> None:
    section = Environment(
        host="a",
        variables=(Variable(name="NCCL_DEBGU", value="WARN", origin="/etc/nccl.conf"),),
    )
    (finding,) = findings(CAUSE, section)
    assert "set in /etc/nccl.conf" in finding.because
    assert finding.fixes[0].paste == "-NCCL_DEBGU=WARN\n+NCCL_DEBUG=WARN"
    assert finding.fixes[0].language == "diff"


def test_a_name_that_resembles_none_is_only_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, environment(NCCL_FLUX_CAPACITOR="1"))
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    "name",
    [
        # as images and start scripts set them
        "CUDA_VERSION",
        "CUDA_ROOT",
        "CUDA_BIN_PATH",
        "CUDA_DRIVER_VERSION",
        "CUDA_TOOLKIT_ROOT_DIR",
        "CUDA_PATH_V12_8",
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_FASTRAK_CTRL_DEV",
        "NCCL_SHARP_GROUP_SIZE_THRESH",
        "NCCL_UCX_TLS",
        "PYTORCH_VERSION",
        "PYTORCH_BUILD_VERSION",
        "TORCH_VERSION",
        "TORCH_NVCC_FLAGS",
        "TORCH_DEVICE",
        "TORCHELASTIC_RUN_ID",
        "OMPI_COMM_WORLD_RANK",
        "FI_PROVIDER",
        "FI_EFA_USE_DEVICE_RDMA",
        "MKL_NUM_THREADS",
        "KMP_AFFINITY",
        "SLURM_JOB_ID",
    ],
)
def test_quiet_about_names_of_others(findings: Findings, name: str) -> None:
    assert findings(CAUSE, environment(**{name: "1"})) == ()


def test_quiet_when_the_right_name_is_set_too(findings: Findings) -> None:
    found = findings(CAUSE, environment(NCCL_DEBGU="INFO", NCCL_DEBUG="INFO"))
    assert [finding.severity for finding in found] == [Severity.NOTE]


def test_a_hidden_value_is_not_judged(findings: Findings) -> None:
    assert findings(CAUSE, environment(NCCL_IB_TIMEOUT=HIDDEN, NCCL_DEBGU=HIDDEN)) == ()


def test_a_newer_nccl_than_the_table_may_read_it(findings: Findings) -> None:
    section = environment(NCCL_IB_DISABLE="true")
    (finding,) = findings(CAUSE, section, with_nccl("2.30.7"))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    (finding,) = findings(CAUSE, section, with_nccl("2.32.3"))
    assert (finding.severity, finding.confidence) == (Severity.NOTE, Confidence.POSSIBLE)
    assert "2.32.3 is installed" in finding.because


@pytest.mark.parametrize(
    ("name", "value", "words", "intended"),
    [
        ("NCCL_IB_DISABLE", "true", "reads it as 0", "1"),
        ("NCCL_P2P_DISABLE", "yes", "reads it as 0", "1"),
        ("NCCL_BUFFSIZE", "8M", "reads it as 8", "8388608"),
        ("NCCL_DEBUG", "INF0", "ignores any other value", "INFO"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NETT", "does not know 'NETT'", "INIT,NET"),
        ("NCCL_P2P_LEVEL", "nvl", "ignores any other value", "NVL"),
        ("NCCL_SOCKET_FAMILY", "IPv6", "AF_INET6", None),
        ("NCCL_IB_RETRY_CNT", "20", "at most 7", None),
        ("OMP_NUM_THREADS", "0", "positive", None),
        ("OMP_NUM_THREADS", "auto", "positive", None),
    ],
)
def test_values_that_are_not_taken_as_meant(
    findings: Findings, name: str, value: str, words: str, intended: str | None
) -> None:
    (finding,) = findings(CAUSE, environment(**{name: value}))
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert words in finding.because
    paste = f"unset {name}" if intended is None else f"export {name}={intended}"
    assert finding.fixes[0].paste == paste


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "true"),
        ("TORCH_NCCL_BLOCKING_WAIT", "on"),
        ("TORCH_DISTRIBUTED_DEBUG", "VERBOSE"),
        ("ACCELERATE_MIXED_PRECISION", "fp32"),
        ("FSDP_SHARDING_STRATEGY", "FULLSHARD"),
        ("NCCL_ALGO", "Rings"),
        ("NCCL_PROTO", "LL64"),
        ("MASTER_PORT", "70000"),
        ("WORLD_SIZE", "0"),
    ],
)
def test_values_at_which_the_run_stops_are_errors(
    findings: Findings, name: str, value: str
) -> None:
    (finding,) = findings(CAUSE, environment(**{name: value}))
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "29501"),
        ("RANK", "0"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG", "VERSION"),
        ("NCCL_DEBUG", "ATTN"),  # since NCCL 2.32
        ("NCCL_DEBUG_LEVELS", "COLL"),
        ("NCCL_DEBUG_SUBSYS", "^NET,init"),
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_DISABLE", "false"),
        ("NCCL_IB_DISABLE", ""),
        ("NCCL_IB_PKEY", "0x7fff"),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_BUFFSIZE", "8388608"),
        ("NCCL_ALGO", "ring,CollnetDirect;allreduce:^tree;broadcast:ring"),
        ("NCCL_PROTO", "^LL128"),
        ("NCCL_P2P_LEVEL", "SYS"),
        ("NCCL_P2P_LEVEL", "4"),
        ("NCCL_NET", "AWS Libfabric"),
        ("NCCL_CTA_POLICY", "EFFICIENCY|ZERO"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"),
        ("TORCH_NCCL_BLOCKING_WAIT", "TRUE"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail"),
        ("TORCH_CPP_LOG_LEVEL", "1"),
        ("OMP_NUM_THREADS", "4,2"),
        ("ACCELERATE_USE_CPU", "off"),
        ("ACCELERATE_MIXED_PRECISION", "bf16"),
        ("FSDP_SHARDING_STRATEGY", "1"),
        ("FSDP_VERSION", "2"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    ],
)
def test_quiet_about_values_that_are_taken_as_meant(
    findings: Findings, name: str, value: str
) -> None:
    assert findings(CAUSE, environment(**{name: value})) == ()


def test_a_name_that_is_gone(findings: Findings) -> None:
    (finding,) = findings(CAUSE, environment(NCCL_IB_GDR_LEVEL="3"), with_nccl("2.27.3"))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.CERTAIN)
    assert finding.fixes[0].paste == "unset NCCL_IB_GDR_LEVEL\nexport NCCL_NET_GDR_LEVEL=3"


def test_a_name_that_went_later_is_still_read(findings: Findings) -> None:
    section = environment(NCCL_CREATE_THREAD_CONTEXT="1")
    assert findings(CAUSE, section, with_nccl("2.27.3")) == ()
    (finding,) = findings(CAUSE, section, with_nccl("2.30.7"))
    assert finding.severity is Severity.WARNING


def test_an_old_name_that_torch_still_reads_is_a_note(findings: Findings) -> None:
    (finding,) = findings(CAUSE, environment(NCCL_ASYNC_ERROR_HANDLING="1"))
    assert finding.severity is Severity.NOTE
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in finding.because


def test_a_name_that_this_nccl_does_not_have_yet_is_a_note(findings: Findings) -> None:
    section = environment(NCCL_IGNORE_NET_MISMATCH="0")
    (finding,) = findings(CAUSE, section, with_nccl("2.27.3"))
    assert finding.severity is Severity.NOTE
    assert "2.30.3" in finding.because
    assert findings(CAUSE, section, with_nccl("2.30.7")) == ()
    assert findings(CAUSE, section) == ()


def path_variable(name: str, missing: str) -> Environment:
    return Environment(
        host="a",
        variables=(
            Variable(name=name, value="/nowhere/x", missing=missing),  # type: ignore[arg-type]
        ),
    )


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("NCCL_TOPO_FILE", "file"),
        ("NCCL_GRAPH_FILE", "folder"),
        ("NCCL_DEBUG_FILE", "folder"),
        ("TORCH_FR_DUMP_TEMP_FILE", "folder"),
    ],
)
def test_files_that_are_not_there(findings: Findings, name: str, missing: str) -> None:
    (finding,) = findings(CAUSE, path_variable(name, missing))
    assert "does not exist" in finding.because


@pytest.mark.parametrize(
    ("name", "missing"),
    [("NCCL_DEBUG_FILE", "file"), ("NCCL_TOPO_FILE", ""), ("HF_HOME", "folder")],
)
def test_quiet_about_files_that_will_be_written(
    findings: Findings, name: str, missing: str
) -> None:
    assert findings(CAUSE, path_variable(name, missing)) == ()


@pytest.mark.parametrize(
    ("values", "unset"),
    [
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}, "NCCL_IB_DISABLE"),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "nvls"}, "NCCL_NVLS_ENABLE"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "NCCL_P2P_DISABLE"),
        ({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"}, "NCCL_MIN_NCHANNELS"),
        (
            {"TORCH_NCCL_DUMP_ON_TIMEOUT": "true", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"},
            "TORCH_NCCL_TRACE_BUFFER_SIZE",
        ),
    ],
)
def test_settings_that_contradict_each_other(
    findings: Findings, values: dict[str, str], unset: str
) -> None:
    (finding,) = findings(CAUSE, environment(**values))
    assert finding.severity >= Severity.WARNING
    assert all(f"{name}={value}" in finding.because for name, value in values.items())
    assert finding.fixes[0].paste == f"unset {unset}"


@pytest.mark.parametrize(
    "values",
    [
        {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"},
        {"NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket"},
        {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring,NVLS"},
        {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"},
        {"NCCL_MIN_NCHANNELS": "8"},
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
    ],
)
def test_quiet_about_settings_that_agree(findings: Findings, values: dict[str, str]) -> None:
    assert findings(CAUSE, environment(**values)) == ()


@pytest.mark.parametrize(
    ("value", "visible", "severity"),
    [
        ("0,1,8", 2, Severity.WARNING),
        ("8", 0, Severity.ERROR),
        ("0,0", 0, Severity.ERROR),
        ("1,2,1", 0, Severity.ERROR),
    ],
)
def test_devices_that_do_not_exist(
    findings: Findings, value: str, visible: int, severity: Severity
) -> None:
    (finding,) = findings(CAUSE, environment(CUDA_VISIBLE_DEVICES=value), gpus(8))
    assert finding.severity is severity
    assert f"leaves {visible} of 8 GPUs visible" in finding.because
    assert finding.fixes[0].paste == "export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"


@pytest.mark.parametrize("value", ["0,1,2,3,4,5,6,7", "7,6", "", "-1", "GPU-1a2b", "NoDevFiles"])
def test_quiet_about_devices_that_exist(findings: Findings, value: str) -> None:
    assert findings(CAUSE, environment(CUDA_VISIBLE_DEVICES=value), gpus(8)) == ()


def test_quiet_about_devices_where_mig_changes_their_names(findings: Findings) -> None:
    assert findings(CAUSE, environment(CUDA_VISIBLE_DEVICES="9"), gpus(8, mig=True)) == ()
