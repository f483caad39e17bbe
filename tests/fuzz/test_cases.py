"""Single changes of sound bundles that once ended in an error of ddoctor: refused, or judged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ddoctor import engine
from ddoctor.errors import DoctorError
from ddoctor.evidence import bundle
from ddoctor.models import JUDGING
from ddoctor.report import difference, html, markdown, terminal
from tests.fuzz import seeds

IMPOSSIBLE: tuple[tuple[str, str, Any, str], ...] = (
    ("doctor", "network interfaces 1 addresses 0 address", "999.1.1.1", "999.1.1.1"),
    ("doctor", "network own_name addresses", ["nan"], "nan"),
    ("doctor", "memory total", -4, "memory of node-1: total is -4, and cannot be below 0"),
    ("doctor", "memory total", 10**19, "memory of node-1: total is above 1e[+]18"),
    ("doctor", "memory total", 10**400, "memory of node-1: total is above 1e[+]18|out of range"),
    ("doctor", "software python", "x" * 200_000, "software of node-1: python has 200000 char"),
    ("run", "steps ranks 3 phases 1 seconds", [0.1], "phases of rank 3 have different lengths"),
    ("run", "steps ranks 3 samples", [1], "lists of one length differ"),
    ("run", "steps ranks 0 phases 0 name", "[red]x[/red]", "Invalid enum value"),
    ("run", "memory-over-time ranks 0 resident", [1.0], "lists of one length differ"),
    ("recorded sharded", "loading loaders 0 wait_steps", [], "is none of the batches"),
    ("run", "wrapping wrappers 0 checksum", [1.0], "different lengths"),
    ("probe", "host-joining expected", 10**18, "<= 1000000"),
    ("probe", "pairs flows 0 sender", 99, "flows of rank 99, which is no end"),
    ("probe", "memory-headroom ranks", [], "length >= 1"),
    ("probe", "burn ranks 0 rates", [], "length >= 1"),
    ("plan", "plan chosen", 7, "no row 7"),
    ("run", "lines ranks 0 lines 0 samples", 0, "rank 0 has lines without samples"),
    ("attach", "live-look ranks 0 samples", 0, "rank 0 has activities without samples"),
)
ODD: tuple[tuple[str, str, Any], ...] = (
    ("doctor", "cpus model", "word " * 2_000),
    ("doctor", "cpus model", "a_" * 4_000),
    ("doctor", "cpus host", "h" * 300),
    ("doctor", "software torch nccl", "<script>"),
    ("doctor", "software torch cuda", "9" * 5_000),
    ("doctor", "environment variables 0", {"name": "OMP_NUM_THREADS", "value": "9" * 5_000}),
    ("doctor", "environment variables 0", {"name": "OMP_NUM_THREADS", "value": "²"}),
    ("doctor", "environment variables 0", {"name": "CUDA_VISIBLE_DEVICES", "value": "²,9"}),
    ("doctor", "gpus gpus", []),
    ("run", "steps ranks", []),
    ("run", "loading loaders", []),
    ("run", "memory-over-time ranks", []),
    ("run", "training-run ranks", []),
    ("recorded stream", "loading loaders 1 rank", 0),
    ("recorded sharded", "memory-over-time ranks 0 resident", []),
    ("recorded sharded", "loading loaders 0 wait_steps", [10**6] * 30),
    ("attach", "live-look ranks 0 activities 0 name", "[red]x[/red]"),
    ("attach", "live-look ranks", []),
    ("attach", "live-look seconds", 0),
    ("probe", "clock-offsets offsets", []),
    ("probe", "matmul rates", []),
    ("probe", "all-reduce points", []),
    ("probe", "collectives sweeps", []),
    ("probe", "pairs flows 0 rates", []),
    ("probe", "memory-headroom trials", []),
    ("probe", "memory-headroom too_large", 3),
    ("plan", "plan schedule seconds", 1e18),
    ("plan", "plan rows 0 step compute", 0.0),
    ("plan", "plan micro_batch", 0),
)


def changed(folder: Path, name: str, place: str, value: Any) -> Path:
    """The bundle of a command with one value changed."""
    label, *way = place.split()
    document = msgspec.json.decode(seeds.bundles()[name])
    holder: Any = next(one for one in document["sections"] if one["type"] == label)
    keys: list[Any] = [int(one) if one.isdigit() else one for one in way]
    *outer, last = keys
    for key in outer:
        holder = holder[key]
    # A place that is not there would change nothing.
    assert isinstance(holder, list) or last in holder
    holder[last] = value
    path = folder / "bundle.json"
    # msgspec writes no number of 400 digits.
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("name", "place", "value", "words"), IMPOSSIBLE)
def test_what_cannot_be_is_refused(
    tmp_path: Path, name: str, place: str, value: Any, words: str
) -> None:
    with pytest.raises(DoctorError, match=words):
        bundle.read(changed(tmp_path, name, place, value))


@pytest.mark.parametrize(("name", "place", "value"), ODD)
def test_what_is_odd_is_judged_and_shown(tmp_path: Path, name: str, place: str, value: Any) -> None:
    evidence = bundle.read(changed(tmp_path, name, place, value))
    report = engine.examine(evidence, "diagnose")
    assert [row for row in report.crashed if row.check != JUDGING] == []
    terminal.render(report, evidence, Console(file=io.StringIO(), width=40))
    markdown.render(report, evidence)
    if name != "run" and not name.startswith("recorded"):  # drawing its charts takes seconds
        html.render(report, evidence)
    if evidence.hosts:
        difference.compare(evidence, evidence)
