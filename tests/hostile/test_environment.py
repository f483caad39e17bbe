"""A poor environment: no variables, no UTF-8, closed streams, a clock that jumps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddoctor.evidence import bundle
from ddoctor.evidence.steps import Steps
from tests.hostile.surroundings import ALONE, LIMIT_SECONDS, RUN, TOGETHER, TORCHRUN, run, script

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
    return access(getenv("JUMPED"), F_OK) == 0 ? atol(getenv("JUMP")) : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += jump();
    return failed;
}
time_t time(time_t *given) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (given) *given = now.tv_sec;
    return now.tv_sec;
}
"""
"""A clock that jumps once a file is there."""


@pytest.mark.parametrize("words", [("run", "--help"), ("--help",)])
def test_a_rank_in_a_locale_without_utf_8(words: tuple[str, ...]) -> None:
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    given = ASCII | rank | address
    ran = run(sys.executable, "-m", "ddoctor.probe", *words, environment=given)
    assert ran.code == 0
    assert re.match("Usage: torchrun . -m ddoctor.probe", ran.stdout)


@pytest.mark.ward
@pytest.mark.parametrize(
    "given",
    [
        ASCII,
        {**ASCII, "PYTHONIOENCODING": "ascii:strict"},
        {"PYTHONIOENCODING": "latin-1", "LANG": "C"},
        {"PYTHONIOENCODING": "utf-16"},
        {"TERM": "dumb", "COLUMNS": "20"},
        {"TERM": "nonsense", "COLUMNS": "0"},
        {"HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"},
        {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"},
        {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "7"},
        {"TMPDIR": "/nowhere"},
    ],
    ids=lambda given: "-".join(given),
)
def test_a_run_with_variables(tmp_path: Path, given: dict[str, str]) -> None:
    path = str(script(tmp_path))
    report = tmp_path / "report.json"
    words = (*RUN, "--json", str(report), sys.executable, path)
    ran = run(*words, environment={"CODE": "3", **given})
    assert (ran.code, len(ran.said)) == (3, 0), ran.stderr
    assert "\0" in ran.stdout or ran.ends == 1
    assert json.loads(report.read_text())["verdict"] == "findings"


@pytest.mark.ward
def test_a_run_without_any_variable(tmp_path: Path) -> None:
    words = (*RUN, *TORCHRUN, "2", str(script(tmp_path, TOGETHER)))
    ran = run(*words, within=("env", "-i"))
    assert (ran.ends, len(ran.said)) == (2, 0), ran.stderr


@pytest.mark.ward
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(tmp_path: Path, closed: str) -> None:
    """The script must not write into a file of ddoctor's that has taken the number."""
    path, end = script(tmp_path, ALONE + '    print("more" * 10_000)\n'), tmp_path / "end"
    path.write_text(path.read_text().replace("sys.exit", f"open({str(end)!r}, 'w')\nsys.exit"))
    within = ("sh", "-c", f'exec "$@" {closed}', "sh")
    report = tmp_path / "report.json"
    words = (*RUN, "--json", str(report), sys.executable, str(path))
    ran = run(*words, within=within, environment={"CODE": "3"})
    assert ran.code == 3
    assert end.exists()
    assert json.loads(report.read_text())["verdict"] == "findings"


@pytest.mark.ward
@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_jumps(tmp_path: Path, jump: int) -> None:
    """In the middle of the steps, in all processes."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the clock with")
    (tmp_path / "clock.c").write_text(CLOCK)
    library, jumped = tmp_path / "clock.so", tmp_path / "jumped"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True
    )
    source = TOGETHER.replace(
        "sgd.zero_grad()", f"sgd.zero_grad()\n        step == 20 and open({str(jumped)!r}, 'w')"
    ).replace('print("the end"', 'print("the end", time.time()')
    out = tmp_path / "bundle.json"
    words = (*RUN, "--bundle", str(out), *TORCHRUN, "2", str(script(tmp_path, source)))
    given = {"LD_PRELOAD": str(library), "JUMPED": str(jumped), "JUMP": str(jump)}
    ran = run(*words, environment=given)
    assert (ran.ends, len(ran.said)) == (2, 0), ran.stderr
    # Two ranks may write to one line.
    told = float(re.findall(r"\d{9,}\.\d+", ran.stdout)[0])
    assert abs(told - out.stat().st_mtime - jump) < LIMIT_SECONDS, "the clock has not jumped"
    (steps,) = bundle.read(out).all(Steps)
    for rank in steps.ranks:
        assert rank.phases
        assert all(0 <= one < 60 for phase in rank.phases for one in phase.seconds)
    assert os.stat(jumped)
