"""The command line as a user meets it: real processes, no mocks."""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from ddoctor import check_catalog, commands
from ddoctor.cli import COMMANDS
from ddoctor.evidence import bundle
from ddoctor.evidence.host import SharedMemory
from ddoctor.evidence.section import Evidence
from tests.healthy import healthy


def ddoctor(
    *arguments: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddoctor", *arguments],
        cwd=cwd,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
    )


def refused(*arguments: str | Path, cwd: Path | None = None) -> str:
    """The one line that a mistake gets."""
    run = ddoctor(*arguments, cwd=cwd)
    assert run.returncode == 2, run.stdout + run.stderr
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.startswith("ddoctor: ")
    return line


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.json"
    bundle.write(path, healthy())
    return path


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    path = tmp_path / "sick.json"
    small = SharedMemory(host="node-1", size=64 * 2**20, free=64 * 2**20)
    bundle.write(path, healthy().with_sections(small))
    return path


def test_help_and_version() -> None:
    bare, helped = ddoctor(), ddoctor("--help")
    assert bare.returncode == helped.returncode == 0
    assert bare.stdout == helped.stdout
    for command in ("doctor", "probe", "diagnose", "report", "explain", "list"):
        assert command in helped.stdout
    assert ddoctor("--version").stdout.startswith("ddoctor 0.")


def test_the_help_says_of_a_command_what_the_command_says() -> None:
    for name, line in COMMANDS.items():
        described = getattr(import_module(f"ddoctor.commands.{name}"), name).__doc__
        assert described.partition("\n")[0] == line
    modules = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert modules == set(COMMANDS)


def test_the_help_imports_no_command() -> None:
    watch = "import sys; from ddoctor.cli import app; app(['--help'], standalone_mode=False); "
    tell = "print([name for name in sys.modules if name.startswith('ddoctor.commands')])"
    run = subprocess.run([sys.executable, "-c", watch + tell], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_a_mistyped_command_gets_a_suggestion() -> None:
    assert "Did you mean 'doctor'?" in refused("doctr")


def test_explain_shows_the_page() -> None:
    for name in ("shm-too-small", "shm_too_small"):
        run = ddoctor("explain", name)
        assert run.returncode == 0
        assert run.stdout.startswith("shm-too-small\n")
        assert "/dev/shm" in run.stdout


def test_list_shows_every_cause_and_probe() -> None:
    run = ddoctor("list")
    assert run.returncode == 0
    for name in (*check_catalog.names(), "allreduce", "storage_read"):
        assert f"  {name} " in run.stdout


def test_completion_is_offered_for_causes() -> None:
    run = ddoctor(
        environment={
            "_DDOCTOR_COMPLETE": "complete_bash",
            "COMP_WORDS": "ddoctor explain shm",
            "COMP_CWORD": "2",
        }
    )
    assert "shm-too-small" in run.stdout


def test_diagnose_tells_sound_from_sick(sound: Path, sick: Path) -> None:
    assert ddoctor("diagnose", sound).returncode == 0
    run = ddoctor("diagnose", sick)
    assert run.returncode == 1
    assert "/dev/shm has 64 MiB" in " ".join(run.stdout.split())


def test_json_on_stdout_is_json_alone(sick: Path) -> None:
    run = ddoctor("diagnose", sick, "--json", "-")
    report = json.loads(run.stdout)
    assert report["schema"] == 1
    assert report["command"] == "diagnose"
    assert report["verdict"] == "findings"
    assert [finding["cause"] for finding in report["findings"]] == ["shm-too-small"]
    assert run.stderr == ""


def test_report_writes_pages(sick: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    run = ddoctor("report", sick, "--html", page, "--markdown", text)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert "shm-too-small" in page.read_text()
    assert "shm-too-small" in text.read_text()


def test_two_hosts_are_told_apart(sound: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    bundle.write(other, Evidence([SharedMemory(host="node-2", size=2**26, free=2**26)]))
    run = ddoctor("diagnose", sound, other, "--json", "-")
    (finding,) = json.loads(run.stdout)["findings"]
    assert finding["where"]["hosts"] == ["node-2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--colour"], "--colour"),
        (["docter"], "docter"),
        (["doctor", "--prob", "x"], "--prob"),
        (["doctor", "surplus"], "surplus"),
        (["doctor", "--probe", "allreduc"], "did you mean 'allreduce'?"),
        (["doctor", "--probe", "xyzzy"], "`ddoctor list` shows"),
        (["doctor", "--probe", "matmul", "--no-probes"], "exclude each other"),
        (["doctor", "--data", "/no/such/folder"], "/no/such/folder"),
        (["doctor", "--json"], "--json"),
        (["doctor", "--json", "/no/such/folder/r.json"], "there is no folder"),
        (["doctor", "--html", "/"], "it is a folder"),
        (["doctor", "--json", "-", "--markdown", "-"], "only one output"),
        (["doctor", "--bundle", "-"], "needs a file name"),
        (["explain", "shm-to-small"], "did you mean 'shm-too-small'?"),
        (["explain", "xyzzy"], "`ddoctor list` shows"),
        (["explain"], "NAME"),
        (["diagnose"], "PATH"),
        (["diagnose", "/no/such/bundle.json"], "No such file"),
        (["report", "/no/such/bundle.json"], "--html PATH"),
    ],
)
def test_a_mistake_gets_one_line(arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)


def test_a_folder_of_bundles(tmp_path: Path) -> None:
    assert ddoctor("doctor", "--no-probes", "--bundle", tmp_path).returncode in (0, 1)
    assert [path.name for path in tmp_path.iterdir()] == [f"{socket.gethostname()}.json"]
    small = SharedMemory(host="other", size=2**26, free=2**26)
    bundle.write(tmp_path / "other.json", Evidence([small]))
    findings = json.loads(ddoctor("diagnose", tmp_path, "--json", "-").stdout)["findings"]
    assert ["other"] in [one["where"]["hosts"] for one in findings]


def test_a_damaged_bundle_gets_one_line(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"schema": 1, "ddoctor": "0", "created": "", "sections": [{"type"')
    assert "b.json is not a whole evidence bundle" in refused("diagnose", path)


def test_a_message_about_strange_text_is_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    section = {"type": "\x1b[31m\x07\u202e" + "x" * 5_000}
    path.write_text(json.dumps({"schema": 1, "ddoctor": "", "created": "", "sections": [section]}))
    done = ddoctor("diagnose", str(path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable()
    assert len(done.stderr) < 1_100


def test_a_bundle_of_a_newer_schema_gets_one_line(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"schema": 9, "ddoctor": "3.0", "created": "", "sections": []}')
    assert "upgrade ddoctor to at least 3.0" in refused("diagnose", path)


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    script = f"{sys.executable} -m ddoctor list | head -n 1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_terminal_without_utf_8_gets_what_it_can_show(sick: Path) -> None:
    run = ddoctor("diagnose", sick, environment={"PYTHONIOENCODING": "ascii"})
    assert (run.returncode, run.stderr) == (1, "")
    assert "node-1 ? certain" in run.stdout


def test_a_closed_stdout_still_gives_the_exit_code(sick: Path) -> None:
    script = f"{sys.executable} -m ddoctor diagnose {sick} >&-"
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (1, "")


WITHOUT_TORCH = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
"""


def test_without_torch_the_rest_is_examined(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    run = ddoctor("doctor", "--json", "-", environment={"PYTHONPATH": str(tmp_path)})
    assert (run.returncode, run.stderr) == (2, "")
    report = json.loads(run.stdout)
    assert report["verdict"] == "incomplete"
    (failed,) = report["crashed"]
    assert "torch is not installed here: pip install torch" in failed["error"]
    assert "skipped" in report


@pytest.mark.ward
def test_a_read_only_working_folder_is_no_obstacle(tmp_path: Path) -> None:
    """Mounted read-only, for even root cannot write there."""
    script = f"mount -t tmpfs -o ro tmpfs {tmp_path} && cd {tmp_path} && exec {sys.executable} "
    script += "-m ddoctor doctor --json - --probe matmul"
    run = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True)
    if "not permitted" in run.stderr or "denied" in run.stderr:
        pytest.skip("no mount namespaces for this user")
    assert run.stderr == ""
    assert json.loads(run.stdout)["verdict"] in ("healthy", "findings")


def test_a_mistake_of_ours_gets_one_line_and_keeps_the_traceback(tmp_path: Path) -> None:
    """Provoked with a dependency that breaks at import."""
    (tmp_path / "msgspec.py").write_text("raise RuntimeError('broken on purpose')\n")
    run = ddoctor("list", environment={"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)})
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "internal error: RuntimeError: broken on purpose" in line
    (kept,) = tmp_path.glob("*.traceback")
    assert str(kept) in line
    assert "Traceback" in kept.read_text()


def test_probe_help_fits_80_columns() -> None:
    run = ddoctor("probe", "--help", environment={"COLUMNS": "80"})
    assert run.returncode == 0
    assert run.stderr == ""
    for option in ("--nnodes", "--nproc-per-node", "--rdzv-endpoint", "--join-timeout", "--json"):
        assert f"  {option} " in run.stdout
    assert max(map(len, run.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--nnodes 0", "--nnodes must be a number from 1 up, not '0'"),
        ("--nnodes 2", "needs a rendezvous"),
        (
            "--nnodes 2:4 --rdzv_endpoint a:1",
            "is a range, but the probes need the number of all hosts",
        ),
        ("--nnodes 2 --rdzv-endpoint :29400", "names no host"),
        ("--nnodes 2 --rdzv-endpoint a:65536", "a number from 1 to 65535, not '65536'"),
        ("--nnodes 2 --rdzv-endpoint localhost:1", "is a different machine on each of 2 hosts"),
        ("--nnodes 2 --rdzv-endpoint a:1 --node-rank 2", "a number from 0 to 1, not '2'"),
        ("--nnodes 2 --rdzv-endpoint a:1 --master-addr a", "exclude each other"),
        ("--nnodes 2 --rdzv-endpoint a:1 matmull", "did you mean 'matmul'?"),
        ("--nproc-per-node 0", "--nproc-per-node must be a number from 1 up"),
        ("--join-timeout nan", "'--join-timeout': nan is not a positive number of seconds"),
        ("--join-timeout soon", "'--join-timeout': "),
        ("--frobnicate", "No such option: --frobnicate"),
    ],
)
def test_probe_refuses_options_that_make_no_run(words: str, told: str) -> None:
    assert told in refused("probe", *words.split())
