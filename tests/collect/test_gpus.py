"""The collector of GPUs: real pynvml against the played driver, and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from ddoctor.collect.holders import holders
from ddoctor.collect.nvml import nvml
from ddoctor.evidence.gpus import Gpu, Gpus, Nvml, PcieLink
from ddoctor.evidence.section import Unseen
from tests.driver import LIBRARY_VERSION, PlayedDriver, scenario
from tests.healthy.gpus import GPUS

MIB = 2**20

COLLECT = """
import msgspec, sys
from ddoctor.collect import CannotSee
from ddoctor.collect.gpus import gpus
from ddoctor.collect.nvml import nvml
try:
    seen = gpus()
except CannotSee as reason:
    seen = str(reason)
sys.stdout.buffer.write(msgspec.json.encode((nvml(), seen)))
"""


class Collected(msgspec.Struct, array_like=True):
    nvml: Nvml
    gpus: Gpus | str


Collect = Callable[..., Collected]


def collect_with(environment: dict[str, str]) -> Collected:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    return msgspec.json.decode(done.stdout, type=Collected)


@pytest.fixture
def collect(played_driver: PlayedDriver, tmp_path: Path) -> Collect:
    """What the collectors see in a scenario, with these lines added to it."""

    def run(name: str, *lines: str) -> Collected:
        file = scenario(name, tmp_path, *lines)
        return collect_with(dict(played_driver.environment(file)))

    return run


@pytest.fixture
def gpus(collect: Collect) -> Callable[..., Gpus]:
    def run(name: str, *lines: str) -> Gpus:
        seen = collect(name, *lines).gpus
        assert isinstance(seen, Gpus), seen
        return seen

    return run


def test_every_field_of_a_healthy_node(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("healthy_8xh100")
    assert (seen.driver, seen.cuda, seen.unseen) == ("570.86.15", (12, 8), ())

    def without_host(gpu: Gpu) -> Gpu:
        assert gpu.pcie is not None
        pcie = msgspec.structs.replace(gpu.pcie, upstream=())
        return msgspec.structs.replace(gpu, pcie=pcie, numa_node=None)

    assert [without_host(gpu) for gpu in seen.gpus] == [without_host(gpu) for gpu in GPUS]
    assert seen.peers is not None
    assert {(pair.path, pair.read) for pair in seen.peers} == {("nvlink", "ok")}
    assert len(seen.peers) == 28


def test_a_lost_gpu_loses_nothing_of_the_others(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("fallen_off_the_bus")
    assert [gpu.index for gpu in seen.gpus if gpu.lost] == [2]
    assert seen.gpus[2].error == "GPU_IS_LOST"
    assert seen.gpus[3].name == "NVIDIA H100 80GB HBM3"
    assert len(seen.peers or ()) == 21


def test_a_handle_that_cannot_be_had_is_a_lost_gpu(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("healthy_8xh100", "gpu.2.handle = error 999")
    assert (seen.gpus[2].lost, seen.gpus[2].error) == (True, "UNKNOWN")


def test_a_forbidden_gpu_is_not_a_lost_one(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("healthy_8xh100", "gpu.2.handle = error 4")
    assert len(seen.gpus) == 7
    assert seen.unseen == (Unseen(what="GPU 2", why="NO_PERMISSION"),)


def test_a_gpu_lost_between_two_questions_keeps_its_name(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("healthy_8xh100", "gpu.2.memory_total = error 15")
    assert (seen.gpus[2].lost, seen.gpus[2].bus_id) == (True, "0000:52:00.0")


def test_one_refused_question_is_named_and_loses_nothing_else(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("healthy_8xh100", "gpu.3.temperature = error 4")
    assert seen.gpus[3].temperature is None
    assert seen.gpus[3].power == 71.0
    assert seen.unseen == (Unseen(what="GPU 3: Temperature", why="NO_PERMISSION"),)


def test_what_a_card_does_not_support_is_no_complaint(gpus: Callable[..., Gpus]) -> None:
    seen = gpus("two_4090")
    card = seen.gpus[0]
    assert seen.unseen == ()
    assert card.nvlinks is None
    assert card.fabric_state is None
    assert card.mig is None
    assert card.ecc_enabled is False
    assert card.ecc_uncorrected_volatile is None
    assert card.remap_pending is None
    assert [(pair.path, pair.read) for pair in seen.peers or ()] == [
        ("host-bridge", "chipset_not_supported")
    ]


def test_a_gpu_that_shares_the_hosts_memory_is_not_lost(gpus: Callable[..., Gpus]) -> None:
    gpu = gpus("healthy_8xh100", "gpu.*.memory_total = error 3").gpus[0]
    assert (gpu.lost, gpu.memory_total, gpu.memory_free) == (False, 0, 0)


def test_clocks_heat_and_their_reasons(gpus: Callable[..., Gpus]) -> None:
    hot = gpus("hot_gpu").gpus[3]
    assert hot.throttle_reasons == ("hw_slowdown", "hw_thermal_slowdown")
    assert (hot.temperature, hot.sm_clock, hot.busy) == (90, 1125, True)


def test_memory_errors_and_what_the_driver_asks_for(gpus: Callable[..., Gpus]) -> None:
    bad = gpus("ecc_uncorrected").gpus[5]
    assert (bad.ecc_uncorrected_volatile, bad.ecc_uncorrected_aggregate) == (2, 2)
    assert (bad.rows_remapped, bad.remap_pending, bad.remap_failed) == (1, True, False)
    assert bad.recovery_action == "drain_and_reset"


def test_links_by_number_and_what_is_at_their_end(gpus: Callable[..., Gpus]) -> None:
    links = gpus("nvlinks_down", "gpu.1.link_errors = 3").gpus[1].nvlinks or ()
    assert [link.index for link in links if not link.active] == [6, 7]
    assert {link.remote for link in links if link.active} == {"switch"}
    assert links[0].errors == 12


def test_a_bridge_leads_to_a_gpu(gpus: Callable[..., Gpus]) -> None:
    bridge = ("gpu.*.link_remote_type = 0", "gpu.*.link_remote = 00000000:43:00.0")
    (link, *_) = gpus("healthy_8xh100", *bridge).gpus[0].nvlinks or ()
    assert link.remote == "0000:43:00.0"


@pytest.mark.parametrize(
    ("lines", "state", "status", "trouble"),
    [
        (["gpu.*.fabric_state = 1"], "not_started", "", ()),
        (["gpu.*.fabric_state = 2"], "in_progress", "", ()),
        (["gpu.*.fabric_status = 23"], "completed", "INSUFFICIENT_RESOURCES", ()),
        (["gpu.*.fabric_health = 0x1a9"], "completed", "", ("degraded_bandwidth",)),
        (
            ["gpu.*.fabric_health = 0x59a"],
            "completed",
            "",
            ("route_unhealthy", "incorrect_configuration"),
        ),
    ],
)
def test_the_fabric(
    gpus: Callable[..., Gpus], lines: list[str], state: str, status: str, trouble: tuple[str, ...]
) -> None:
    gpu = gpus("healthy_8xh100", *lines).gpus[0]
    assert (gpu.fabric_state, gpu.fabric_status, gpu.fabric_trouble) == (state, status, trouble)


def test_pcie_now_and_possible(gpus: Callable[..., Gpus]) -> None:
    assert gpus("pcie_x4").gpus[6].pcie == PcieLink(
        generation=5, width=4, maximum_generation=5, maximum_width=16, replays=0
    )


def test_mig(gpus: Callable[..., Gpus]) -> None:
    assert [gpu.mig for gpu in gpus("mig_on").gpus] == [True] + [False] * 7


def test_a_mismatch_is_told_with_the_version_of_the_library(collect: Collect) -> None:
    collected = collect("nvml_mismatch")
    assert collected.nvml.state == "failed"
    assert collected.nvml.error == "LIB_RM_VERSION_MISMATCH"
    assert collected.nvml.library_version == LIBRARY_VERSION
    assert collected.gpus == "NVML does not answer: LIB_RM_VERSION_MISMATCH"


def test_an_answering_nvml(collect: Collect) -> None:
    assert collect("healthy_8xh100").nvml.state == "ok"


@pytest.mark.skipif(
    any(Path("/usr/lib").glob("**/libnvidia-ml.so.1")), reason="this machine has a real driver"
)
def test_no_library_is_no_failure() -> None:
    collected = collect_with({})
    assert collected.nvml.state == "no-library"
    assert "no NVIDIA driver" in str(collected.gpus)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 21 20:54:01 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
    ],
)
def test_the_version_of_the_loaded_module(tmp_path: Path, text: str) -> None:
    module = tmp_path / "proc/driver/nvidia/version"
    module.parent.mkdir(parents=True)
    module.write_text(text + "GCC version:  gcc version 12.3.0\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/maps").write_text("")
    assert nvml(tmp_path).module_version == "570.86.15"


def test_gpus_on_the_bus_are_nvidia_s_and_no_audio(tmp_path: Path) -> None:
    for bus_id, vendor, kind in (
        ("0000:1b:00.0", "0x10de", "0x030200"),
        ("0000:1b:00.1", "0x10de", "0x040300"),
        ("0000:03:00.0", "0x1a03", "0x030000"),
    ):
        device = tmp_path / "sys/bus/pci/devices" / bus_id
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/maps").write_text("")
    assert nvml(tmp_path).pci_gpus == ("0000:1b:00.0",)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_memory_of_a_process_reaches_its_gpu(
    gpus: Callable[..., Gpus], sleeper: subprocess.Popen[bytes]
) -> None:
    seen = gpus("healthy_8xh100", f"gpu.4.processes = {sleeper.pid}:30720")
    (process,) = seen.gpus[4].processes or ()
    assert (process.pid, process.memory, process.holder) == (sleeper.pid, 30720 * MIB, "own")
    assert (process.name, process.idle) == ("sleep", True)
    assert seen.gpus[3].processes == ()


def test_memory_that_nvml_does_not_tell_is_none(
    gpus: Callable[..., Gpus], sleeper: subprocess.Popen[bytes]
) -> None:
    seen = gpus("healthy_8xh100", f"gpu.4.processes = {sleeper.pid}:-1")
    (process,) = seen.gpus[4].processes or ()
    assert process.memory is None


def test_a_process_at_work_is_not_idle() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            [rows] = holders([[(busy.pid, 1)]])
        finally:
            busy.kill()
    assert rows is not None
    assert (rows[0].holder, rows[0].idle) == ("own", False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_somebody_else_s_process_is_foreign() -> None:
    with subprocess.Popen(["sleep", "600"], user="nobody") as theirs:
        try:
            [rows] = holders([[(theirs.pid, 1)]])
        finally:
            theirs.kill()
    assert rows is not None
    assert (rows[0].holder, rows[0].user) == ("foreign", "nobody")


def test_a_child_of_a_reaper_that_sleeps_is_an_orphan(sleeper: subprocess.Popen[bytes]) -> None:
    adopter = frozenset({psutil.Process().name()})
    [rows] = holders([[(sleeper.pid, 1)]], reapers=adopter)
    assert rows is not None
    assert rows[0].holder == "orphan"


def test_a_process_that_does_not_exist_is_hidden() -> None:
    [rows, unknown] = holders([[(2**22 + 1, 5)], None])
    assert rows is not None
    assert (rows[0].holder, rows[0].memory, rows[0].name) == ("hidden", 5, "")
    assert unknown is None
