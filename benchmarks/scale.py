"""How long the evidence of a large cluster takes to judge, and whether its faults are found.

``make bench`` runs it; the evidence is simulated (``tests/many_hosts.py``), written as one bundle,
and read and judged in a process of its own, so that its memory is only what that takes. Exit
code 1: a limit is passed, a planted fault is not found, or something else is.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.report import html, markdown, schema, terminal
from tests.many_hosts import GPUS_PER_HOST, fleet, name, named, planted

HOSTS = 4096
LIMIT_SECONDS = 10.0
LIMIT_BYTES = 2 * 2**30
LIMIT_PAGE_BYTES = 2 * 2**20


def main(hosts: int = HOSTS) -> int:
    """Write the bundle, then judge it in another process."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bundle.json"
        bundle.write(path, fleet(hosts, planted(hosts)))
        command = [sys.executable, "-m", "benchmarks.scale", str(hosts), str(path)]
        return subprocess.run(command).returncode


def judge(hosts: int, path: Path) -> int:
    """Read, judge and render on one core, and say what each took."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    started = time.perf_counter()
    evidence = bundle.read(path)
    read = time.perf_counter()
    report = engine.examine(evidence, "diagnose")
    judged = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{hosts} hosts × {GPUS_PER_HOST} ranks, {path.stat().st_size / 1e6:.0f} MB of evidence: "
        f"read in {read - started:.1f} s, judged in {judged - read:.1f} s, "
        f"at most {peak / 2**20:.0f} MiB"
    )
    text = StringIO()
    terminal.render(report, evidence, Console(file=text, width=100))
    faces = {
        "terminal": text.getvalue(),
        "markdown": markdown.render(report, evidence),
        "html": html.render(report, evidence),
        "json": schema.render(report),
    }
    sizes = {face: len(content.encode()) for face, content in faces.items()}
    lines = text.getvalue().count("\n")
    print(
        f"all faces in {time.perf_counter() - judged:.1f} s: terminal {lines} lines, "
        + ", ".join(f"{face} {size / 1024:.0f} KiB" for face, size in sizes.items())
    )
    wanted = {(fault.cause, name(fault.host)) for fault in planted(hosts)}
    found = named(report.findings)
    print(
        f"{len(wanted & found)} of {len(wanted)} planted faults found, "
        f"{len(found - wanted)} others told"
    )
    good = (
        judged - started < LIMIT_SECONDS
        and peak < LIMIT_BYTES
        and sizes["html"] < LIMIT_PAGE_BYTES
        and found == wanted
        and not report.crashed
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(judge(int(sys.argv[1]), Path(sys.argv[2])) if len(sys.argv) == 3 else main())
