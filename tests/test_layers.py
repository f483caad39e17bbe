"""Who may import whom. `docs/contributing.md` gives the reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "pynvml", "accelerate", "transformers", "matplotlib", "jinja2"}

ALLOWED = {
    "ddoctor/errors.py": set(),
    "ddoctor/models.py": set(),
    "ddoctor/evidence": {"ddoctor.errors", "ddoctor.evidence", "ddoctor.models"},
    "ddoctor/knowledge": {"ddoctor.evidence", "ddoctor.knowledge"},
    "ddoctor/collect": {"ddoctor.collect", "ddoctor.errors", "ddoctor.evidence"},
    "ddoctor/engine.py": {
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.knowledge",
        "ddoctor.models",
        "ddoctor.order",
        "ddoctor.proof",
        "ddoctor.recorded",
        "ddoctor.standing",
    },
    "ddoctor/order.py": {"ddoctor.models"},
    "ddoctor/proof.py": {"ddoctor.evidence", "ddoctor.models"},
    "ddoctor/report": {
        "ddoctor.endings",
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.knowledge",
        "ddoctor.lateness",
        "ddoctor.models",
        "ddoctor.report",
        "ddoctor.scaling",
        "ddoctor.standing",
    },
    "checks": {
        "ddoctor.balance",
        "ddoctor.crowding",
        "ddoctor.ddp_options",
        "ddoctor.endings",
        "ddoctor.evidence",
        "ddoctor.hunger",
        "ddoctor.lateness",
        "ddoctor.mismatch",
        "ddoctor.models",
        "ddoctor.out_of_memory",
        "ddoctor.pairing",
        "ddoctor.rails",
        "ddoctor.recorded",
        "ddoctor.remedies",
        "ddoctor.scaling",
        "ddoctor.standing",
        "ddoctor.why_late",
        "ddoctor.workload",
    },
    "ddoctor/scaling.py": {"ddoctor.evidence"},
    "ddoctor/why_late.py": {"ddoctor.balance", "ddoctor.evidence"},
    "ddoctor/balance.py": {"ddoctor.evidence", "ddoctor.workload"},
    "ddoctor/crowding.py": {"ddoctor.evidence", "ddoctor.workload"},
    "ddoctor/workload.py": {"ddoctor.evidence"},
    "ddoctor/ddp_options.py": {"ddoctor.evidence"},
    "ddoctor/endings.py": {"ddoctor.evidence"},
    "ddoctor/mismatch.py": {"ddoctor.endings", "ddoctor.evidence"},
    "ddoctor/pairing.py": {"ddoctor.evidence"},
    "ddoctor/out_of_memory.py": {
        "ddoctor.endings",
        "ddoctor.evidence",
        "ddoctor.models",
        "ddoctor.remedies",
    },
    "ddoctor/remedies.py": {"ddoctor.evidence", "ddoctor.models"},
    "ddoctor/rails.py": {"ddoctor.evidence", "ddoctor.pairing"},
    "ddoctor/hunger.py": {"ddoctor.evidence", "ddoctor.lateness", "ddoctor.standing"},
    "ddoctor/lateness.py": {"ddoctor.evidence", "ddoctor.models", "ddoctor.standing"},
    "ddoctor/recorded.py": {
        "ddoctor.endings",
        "ddoctor.evidence",
        "ddoctor.models",
        "ddoctor.standing",
    },
    "ddoctor/forecast": {
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.forecast",
        "ddoctor.headroom.work",
        "ddoctor.knowledge",
        "ddoctor.scaling",
    },
    "ddoctor/headroom": {
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.forecast",
        "ddoctor.harness",
        "ddoctor.headroom",
    },
    "ddoctor/gpu_lines.py": {"ddoctor.evidence"},
    "ddoctor/standing.py": {
        "ddoctor.endings",
        "ddoctor.evidence",
        "ddoctor.gpu_lines",
        "ddoctor.models",
    },
    "ddoctor/live": {
        "ddoctor.collect",
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.gpu_lines",
        "ddoctor.host_use",
        "ddoctor.knowledge",
        "ddoctor.launched",
        "ddoctor.live",
        "ddoctor.processes",
        "ddoctor.recorder.weight",
        "ddoctor.standing",
    },
    "ddoctor/recorder": {
        "ddoctor.evidence",
        "ddoctor.forecast.model.operators",
        "ddoctor.harness",
        "ddoctor.headroom",
        "ddoctor.journal",
        "ddoctor.recorder",
    },
    "ddoctor/sweep.py": {"ddoctor.evidence", "ddoctor.harness"},
    "probes": {
        "ddoctor.collect",
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.harness",
        "ddoctor.headroom",
        "ddoctor.pairing",
        "ddoctor.rails",
        "ddoctor.sweep",
    },
}
PURE = {"__future__", "ast", "collections", "dataclasses", "difflib", "functools", "itertools"}
PURE |= {"math", "re", "statistics", "string", "typing"}


def sources(place: str) -> list[Path]:
    path = ROOT / place
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def imports(path: Path, *, at_import_time: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in tree.body if at_import_time else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield from (
                f"{module}.{alias.name}" if module == "ddoctor" else module for alias in node.names
            )


def inside(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_point_downwards(place: str) -> None:
    for path in sources(place):
        for module in imports(path):
            if inside(module, {"ddoctor"}):
                assert inside(module, ALLOWED[place]), f"{path} imports {module}"


def test_models_need_the_standard_library_alone() -> None:
    assert set(imports(ROOT / "ddoctor/models.py")) <= PURE | {"collections.abc", "enum"}


def test_checks_judge_and_do_nothing_else() -> None:
    for path in sources("checks"):
        for module in imports(path):
            top = module.partition(".")[0]
            assert top in PURE | {"ddoctor", "packaging"}, f"{path} imports {module}"


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    for place in ("ddoctor", "checks"):
        for path in sources(place):
            # It is loaded when the script itself has loaded torch, or where a model is at hand.
            if path.parent.name == "recorder" or path.parent.match("forecast/model"):
                continue
            heavy = {module.partition(".")[0] for module in imports(path, at_import_time=True)}
            assert not heavy & HEAVY, f"{path} imports {heavy & HEAVY} at its top"


def test_nobody_names_a_check_or_a_probe_module() -> None:
    for path in [*sources("ddoctor"), *sources("checks"), *sources("probes"), *sources("tests")]:
        for module in imports(path):
            assert not inside(module, {"checks", "probes", "ddoctor.checks", "ddoctor.probes"})


def test_nobody_imports_the_command_line() -> None:
    for path in sources("ddoctor"):
        if path.name != "__main__.py":
            assert not any(inside(module, {"ddoctor.cli"}) for module in imports(path)), path
