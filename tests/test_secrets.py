"""Secrets planted wherever a command looks; none may be in anything that it writes."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import TrainingRun
from ddoctor.live import logs
from ddoctor.report import html, markdown, schema, terminal
from tests.conftest import free_port
from tests.evidence.secret_kinds import DRAWN, KNOWN, SHORT
from tests.healthy import healthy

KINDS = KNOWN | DRAWN
BY_NAME = KINDS | SHORT
# Fields of free text: a secret in the name of a phase or an address would only be a broken bundle.
FREE = (
    *("arguments", "command", "command_line", "error", "file", "function", "last", "limit"),
    *("message", "oom_kills", "path", "printed", "reason", "text", "value", "why", "words"),
)

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def login(token, then=""):
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        pass

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 4))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(os.environ["STEPS"])):
    model(torch.randn(2, 4)).sum().backward()
    sgd.step()
    sgd.zero_grad()
    login("{line}")
    login(token="{named}")
    if step == 3:
        open("stepping", "w").close()
said = (os.environ["SAID"], os.environ["HF_HUB_TOKEN"], sys.argv[2])
text = "401: " + ", ".join(said)
{end}
"""
ENDS = {
    "raised": "raise RuntimeError(text)",
    "long": 'raise RuntimeError(text + "." * 3950 + " {cut} and {cut}")',
    "bytes": """raise RuntimeError(text, {"password": b"{named}"})""",
    "two lines": 'raise RuntimeError(text + " " + said[1][:2] + chr(10) + said[1][2:])',
    "private key": """raise RuntimeError(text + '''{private}''')""",
    "called": """
import subprocess
subprocess.run(["false", "--wandb-key", "{named}"], check=True)
""",
    "set later": """
os.environ["DB_PASSWORD"] = "{named}"
raise RuntimeError(text + repr(os.environ["DB_PASSWORD"].encode()))
""",
    "caught": """
import traceback
try:
    raise RuntimeError(text + " https://host/?x=1&key={named}")
except RuntimeError:
    traceback.print_exc()
    os._exit(3)
""",
    "printed": """
print("what(): " + text, file=sys.stderr, flush=True)
os.abort()
""",
    "chained": """
try:
    open("/nowhere/{cut}/x")
except OSError as error:
    raise ValueError(text) from error
""",
}
"""How a script ends."""


class Planted:
    """Draws secrets, and looks for them."""

    def __init__(self, seed: object) -> None:
        self.random = Random(str(seed))
        self.secrets: list[str] = []

    def by_form(self) -> str:
        return self._draw(KINDS)

    def by_name(self) -> str:
        return self._draw(BY_NAME)

    def private_key(self) -> str:
        """Of several lines; each is looked for."""
        lines = [base64.b64encode(self.random.randbytes(48)).decode() for _ in range(4)]
        self.secrets += lines
        return "\n".join(("-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----"))

    def _draw(self, kinds: dict[str, Any]) -> str:
        kind = self.random.choice(sorted(kinds))
        self.secrets.append(kinds[kind](self.random))
        return self.secrets[-1]

    def found(self, *texts: str) -> list[str]:
        """The secrets in these texts, or the ends of cut ones, each with what stands around it."""
        return [
            text[max(0, text.index(secret[-10:]) - 160) :][:240]
            for secret in self.secrets
            for text in texts
            if secret[-10:] in text
        ]


def files(folder: Path) -> list[str]:
    found = []
    for path, _, names in os.walk(folder):
        for name in names:
            # The run may have removed it since.
            with suppress(OSError):
                found.append((Path(path) / name).read_text(errors="replace"))
    return found


class Watched(threading.Thread):
    """Reads all files of a folder again and again, while a command writes them."""

    def __init__(self, folder: Path, planted: Planted) -> None:
        super().__init__()
        self._folder, self._planted, self._over = folder, planted, threading.Event()
        self.found: list[str] = []
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.found += self._planted.found(*files(self._folder))

    def end(self) -> list[str]:
        self._over.set()
        self.join()
        return self.found


def planted_in(value: Any, planted: Planted, *, free: bool = False) -> Any:
    """The same builtins with a secret behind each free text."""
    if isinstance(value, str):
        return f"{value} {planted.by_form()}" if free else value
    if isinstance(value, dict):
        return {name: planted_in(one, planted, free=name in FREE) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [planted_in(one, planted, free=free) for one in value]
    return value


@pytest.mark.parametrize("command", ["doctor", "probe", "run", "attach"])
def test_no_report_shows_what_stands_in_the_evidence(command: Any) -> None:
    planted = Planted(command)
    evidence = Evidence(
        msgspec.convert(planted_in(msgspec.to_builtins(section), planted), type(section))
        for section in healthy(command)
    )
    assert len(planted.secrets) > 10
    report = engine.examine(evidence, command)
    shown = io.StringIO()
    terminal.render(report, evidence, Console(file=shown, width=2000))
    bundle = msgspec.json.encode([*evidence]).decode()
    written = (schema.render(report), markdown.render(report, evidence))
    page = html.render(report, evidence)
    assert planted.found(shown.getvalue(), bundle, *written, page) == []


def environment(planted: Planted, folder: Path) -> dict[str, str]:
    temporary = folder / "tmp"
    temporary.mkdir()
    return os.environ | {
        "NCCL_PASSWORD": planted.by_name(),
        "DDOCTOR_TOKEN": planted.by_name(),
        "SLURM_JOB_NAME": f"job-{planted.by_form()}",
        "HTTPS_PROXY": f"http://me:{planted.by_name()}@proxy:8080",
        "NCCL_DEBUG_FILE": f"/tmp/{planted.by_form()}.%h",
        "TORCH_HOME": f"https://me:{planted.by_name()}@host/cache",
        "HF_HUB_TOKEN": planted.by_name(),
        "TRITON_CACHE_DIR": f"/tmp/{planted.by_form()}",
        "SAID": planted.by_form(),
        "TMPDIR": str(temporary),
        "COLUMNS": "2000",
    }


def outputs(folder: Path) -> list[str]:
    kinds = {"json": "json", "html": "html", "markdown": "md", "bundle": "bundle.json"}
    return [f"--{option}={folder / f'out.{ending}'}" for option, ending in kinds.items()]


def script(folder: Path, planted: Planted, how: str = "raised") -> Path:
    path = folder / planted.by_form().replace("/", "_") / "train.py"
    planted.secrets[-1] = path.parent.name
    path.parent.mkdir()
    text = TRAIN.replace("{end}", ENDS[how]).replace("{line}", planted.by_form())
    text = text.replace("{named}", planted.by_name()).replace("{cut}", planted.by_form())
    path.write_text(text.replace("{private}", planted.private_key()))
    return path


def arguments(planted: Planted) -> list[str]:
    return [
        "--hf-token",
        planted.by_name(),
        f"--wandb-key={planted.by_name()}",
        f"https://me:{planted.by_name()}@host/x",
        planted.by_form(),
        f"+trainer.api_key={planted.by_name()}",
        f"redis://:{planted.by_name()}@host:6379/0",
        json.dumps({"api_key": planted.by_name(), "private_key": planted.private_key()}),
        f"logger={{name:wandb,api_key:{planted.by_name()}}}",
        *("-u", f"me:{planted.by_name()}"),
        f"Authorization: Basic {planted.by_form()}==",
        f"AccountName=me;AccountKey={planted.by_name()};EndpointSuffix=host",
    ]


def ddoctor(
    *words: str, environment: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], env=environment, cwd=cwd, capture_output=True, text=True
    )


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.ward) for seed in range(1, 10))]


@pytest.mark.parametrize(
    ("how", "seed"),
    [
        pytest.param(how, seed, marks=[pytest.mark.ward] if how != "long" else [])
        for seed, how in enumerate(ENDS)
    ],
)
def test_run(tmp_path: Path, how: str, seed: int) -> None:
    planted = Planted(f"run {how} {seed}")
    known = environment(planted, tmp_path) | {"STEPS": "30"}
    train = script(tmp_path, planted, how)
    results = tmp_path / "results"
    results.mkdir()
    watched = Watched(tmp_path / "tmp", planted)
    launch = ["torchrun", "--standalone", "--nproc-per-node=2", str(train), *arguments(planted)]
    torchrun = str(Path(sys.executable).parent / launch[0])
    words = ["ddoctor", "run", *outputs(results), "--", torchrun, *launch[1:]]
    run = ddoctor(*words, environment=known, cwd=results)
    assert run.returncode == 1, run.stderr
    assert how in ("called", "printed") or "401: ‹redacted›, ‹redacted›, ‹redacted›" in run.stdout
    # The rest of stderr is the script's own traceback, and torchrun's.
    ours = [line for line in run.stderr.splitlines() if line.startswith("ddoctor")]
    assert "--hf-token ‹redacted›" in ours[0]
    assert planted.found(run.stdout, *ours, *files(results)) == []
    assert watched.end() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_attach(tmp_path: Path, seed: int) -> None:
    planted = Planted(f"attach {seed}")
    known = environment(planted, tmp_path)
    train = script(tmp_path, planted)
    results = tmp_path / "results"
    results.mkdir()
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "STEPS": "100000"}
    process = subprocess.Popen(
        [sys.executable, str(train), *arguments(planted)],
        env=known | alone | {"MASTER_PORT": str(free_port())},
        cwd=results,
    )
    # Who looks at it has another environment.
    unknowing = os.environ | {"TMPDIR": known["TMPDIR"], "COLUMNS": known["COLUMNS"]}
    watched = Watched(tmp_path / "tmp", planted)
    try:
        while not (results / "stepping").exists():
            assert process.poll() is None
            time.sleep(0.1)
        words = ["ddoctor", "attach", str(process.pid), "--seconds", "4"]
        run = ddoctor(*words, *outputs(results), environment=unknowing, cwd=results)
    finally:
        process.kill()
        process.wait()
        found = watched.end()
    assert found == []
    assert run.returncode in (0, 1), run.stderr
    assert "login(" in run.stdout + "".join(files(results))
    assert planted.found(run.stdout, run.stderr, *files(results), *files(tmp_path / "tmp")) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "words",
    [
        ("ddoctor", "doctor", "--no-probes"),
        pytest.param(
            ("torch.distributed.run", "--standalone", "-m", "ddoctor.probe", "--quick"),
            marks=pytest.mark.ward,
        ),
    ],
    ids=["doctor", "probe"],
)
def test_a_machine(tmp_path: Path, seed: int, words: tuple[str, ...]) -> None:
    planted = Planted(f"{words} {seed}")
    known = environment(planted, tmp_path)
    results = tmp_path / "results"
    results.mkdir()
    watched = Watched(tmp_path / "tmp", planted)
    run = ddoctor(*words, *outputs(results), environment=known, cwd=results)
    assert watched.end() == []
    assert run.returncode in (0, 1), run.stderr
    assert "NCCL_PASSWORD" in (results / "out.bundle.json").read_text()
    assert planted.found(run.stdout, run.stderr, *files(results), *files(tmp_path / "tmp")) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_complaint(tmp_path: Path, seed: int) -> None:
    planted = Planted(f"complaint {seed}")
    known = environment(planted, tmp_path)
    wrong = (
        ("diagnose", f"/nowhere/{planted.by_form()}.json"),
        ("plan", "--model", planted.by_form()),
        ("explain", planted.by_form()),
        ("run", f"--hf-token={planted.by_name()}", "--", "python", "x.py"),
        ("run", "--", "torchrun", f"/nowhere/{planted.by_form()}.py"),
    )
    words = wrong[seed % len(wrong)]
    run = ddoctor("ddoctor", *words, environment=known, cwd=tmp_path)
    assert run.returncode == 2, run.stdout
    assert planted.found(run.stdout, run.stderr, *files(tmp_path)) == []


LOG = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/data/{form}/train.py", line 3, in <module>
[rank1]:     client = connect(auth=("me", "{named}"))
[rank1]: RuntimeError: refused: {form}, password: {named} {dots} {cut} and {cut}
"""


@pytest.mark.parametrize("seed", range(20))
def test_a_log(tmp_path: Path, seed: int) -> None:
    planted = Planted(f"log {seed}")
    log = tmp_path / "log"
    given = {"form": planted.by_form(), "named": planted.by_name(), "cut": planted.by_form()}
    log.write_text(LOG.format(dots="." * planted.random.randrange(3800, 4000), **given))
    evidence = Evidence(logs.sections([log], [1], first=0, host="a", command=()))
    assert evidence.all(TrainingRun)[0].ranks[0].exception == "RuntimeError"
    assert planted.found(msgspec.json.encode([*evidence]).decode()) == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.ward)])
def test_what_is_read_again(tmp_path: Path, seed: int) -> None:
    """A bundle of another version, which redacted less; ddoctor reads it and writes all it can."""
    planted = Planted(f"again {seed}")
    known = environment(planted, tmp_path)
    for name in ("old", "new"):
        bundle.write(path := tmp_path / f"{name}.json", Evidence(healthy("run")))
        path.write_text(json.dumps(planted_in(json.loads(path.read_text()), planted)))
    results = tmp_path / "results"
    results.mkdir()
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    written = [one for one in outputs(results) if "bundle" not in one]
    for words in (
        ("diagnose", old, *written),
        ("diff", old, new),
        ("diff", old, new, f"--json={results / 'diff.json'}"),
        ("report", old, *(one for one in written if "json" not in one)),
    ):
        run = ddoctor("ddoctor", *words, environment=known, cwd=results)
        assert run.returncode in (0, 1), run.stderr
        assert (
            planted.found(run.stdout, run.stderr, *files(results), *files(tmp_path / "tmp")) == []
        )
