"""What `attach` says where it may not look, or finds nothing to look at."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.surroundings import Ran, Within, after, nobody, run
from tests.live.test_bad_input import WITH_TORCH, python

ATTACH = (sys.executable, "-m", "ddoctor", "attach")
REFUSED = (sys.executable, str(Path(__file__).with_name("refused.py")))
MAIN = """
import time
import torch
def main():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
main()
"""


def told(*words: str, within: Within = ()) -> str:
    """The one line of an attach that could not look."""
    ran = run(*ATTACH, *words, within=within)
    assert (ran.code, ran.stdout, len(ran.said)) == (2, "", 1), ran
    return ran.said[0]


@pytest.mark.parametrize("number", ["-1", "0", "99999999", "4294967296", "9" * 30])
def test_a_number_that_is_no_process(number: str) -> None:
    words = f"there is no process {number}, or it has ended"
    assert told("--", number) == f"ddoctor: {words}"


def test_a_zombie() -> None:
    with subprocess.Popen(["true"]) as ended:
        # Not waited for yet: so psutil still sees it.
        while "Z" not in Path(f"/proc/{ended.pid}/stat").read_text().split(")")[1][:3]:
            pass
        assert f"there is no process {ended.pid}, or it has ended" in told(str(ended.pid))


@pytest.mark.parametrize(
    "prepare",
    [
        "mount -t tmpfs none /proc",
        # That of the host, in a PID namespace without its own.
        pytest.param("", marks=pytest.mark.ward),
    ],
)
def test_a_foreign_proc(prepare: str) -> None:
    namespaces = ("--mount",) if prepare else ("--pid", "--fork")
    line = told(within=after(prepare, *namespaces))
    assert "/proc does not show the processes of this container: run `mount -t proc" in line


@pytest.mark.ward
def test_another_pid_namespace() -> None:
    within = after("", "--pid", "--fork", "--mount-proc")
    with python(WITH_TORCH) as process:
        assert "there is no process" in told(str(process.pid), within=within)
        assert "no training runs on this host" in told(within=within)
        assert process.is_running()


@pytest.mark.ward
def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken, python(WITH_TORCH) as process:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = (str(process.pid), "--watch", "--prometheus")
        assert f"--prometheus {port}: Address already in use" in told(*words, str(port))
        assert "Cannot assign requested address" in told(*words, "9.9.9.9:9400")
        assert "no port from 1 to 65535" in told(*words, "70000")


def _unjudged(ran: Ran) -> str:
    """What an attach says that could not see the stacks: neither healthy nor hung."""
    text = " ".join(ran.stdout.split())
    assert ran.code == 2, ran
    assert text.startswith("incomplete: the stack of rank 0 was not seen: ")
    assert "stuck" not in text
    return text


@pytest.mark.ward
def test_seccomp_refuses() -> None:
    """py-spy reads /proc/PID/mem then, which takes the same right but no refused call."""
    with python(MAIN) as process:
        ran = run(*ATTACH, str(process.pid), "--seconds", "3", within=REFUSED)
        assert ran.code == 2
        assert "main" in ran.stdout
        assert process.is_running()


@pytest.mark.ward
@pytest.mark.parametrize("scope", [1, 2, 3])
def test_yama(scope: int, tmp_path: Path) -> None:
    """A process that is not dumpable refuses as Yama does, whose file is played here."""
    (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    prepare = (
        "mount -t tmpfs none /proc/sys/kernel && mkdir /proc/sys/kernel/yama && "
        f"cp {tmp_path}/ptrace_scope /proc/sys/kernel/yama"
    )
    from ddoctor.live.spy import why

    within = (*after(prepare, "--mount"), *nobody())
    code = "from ddoctor.live.spy import why; print(why('Error: Permission denied (os error 13)'))"
    ran = run(sys.executable, "-c", code, within=within, folder=Path("/"))
    assert ran.stdout.startswith(f"kernel.yama.ptrace_scope is {scope}: run `sudo sysctl")
    assert "CAP" not in why("")


@pytest.mark.ward
def test_a_user_sees_only_its_own_processes() -> None:
    """As where /proc is mounted with hidepid=2."""
    within = (*after("mount -t proc -o hidepid=2 proc /proc", "--mount"), *nobody())
    with python(WITH_TORCH) as process:
        ran = run(*ATTACH, str(process.pid), within=within, folder=Path("/"))
        assert ran.code == 2
        assert f"there is no process {process.pid}" in ran.said[0]


@pytest.mark.ward
def test_py_spy_is_not_installed(tmp_path: Path) -> None:
    """A Python with the same packages, and without its programs."""
    here = Path(sys.prefix)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(here / "pyvenv.cfg", tmp_path)
    (tmp_path / "lib").symlink_to(here / "lib")
    words = ("-m", "ddoctor", "attach")
    with python(WITH_TORCH) as process:
        command = (str(tmp_path / "bin/python"), *words, str(process.pid))
        ran = run(*command, environment={"PATH": "/usr/bin:/bin"})
        assert ran.code == 2
        assert ran.said == ["ddoctor: py-spy is not installed: run python -m pip install py-spy"]
