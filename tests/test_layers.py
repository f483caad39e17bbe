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
        "ddoctor.control_arms",
        "ddoctor.analysis.flight_records",
        "ddoctor.analysis.live_state",
    },
    "ddoctor/order.py": {"ddoctor.models"},
    "ddoctor/control_arms.py": {"ddoctor.evidence", "ddoctor.models"},
    "ddoctor/report": {
        "ddoctor.analysis.endings",
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.knowledge",
        "ddoctor.analysis.live_stragglers",
        "ddoctor.models",
        "ddoctor.report",
        "ddoctor.analysis.scaling",
        "ddoctor.analysis.live_state",
    },
    "checks": {
        "ddoctor.analysis.stragglers",
        "ddoctor.analysis.cpu_contention",
        "ddoctor.analysis.ddp_options",
        "ddoctor.analysis.endings",
        "ddoctor.evidence",
        "ddoctor.analysis.live_data_starvation",
        "ddoctor.analysis.live_stragglers",
        "ddoctor.analysis.collective_mismatch",
        "ddoctor.models",
        "ddoctor.analysis.cuda_oom",
        "ddoctor.analysis.slow_links",
        "ddoctor.analysis.slow_rails",
        "ddoctor.analysis.flight_records",
        "ddoctor.analysis.memory_fixes",
        "ddoctor.analysis.scaling",
        "ddoctor.analysis.live_state",
        "ddoctor.analysis.straggler_reason",
        "ddoctor.analysis.work_imbalance",
    },
    "ddoctor/analysis/scaling.py": {"ddoctor.evidence"},
    "ddoctor/analysis/straggler_reason.py": {"ddoctor.analysis.stragglers", "ddoctor.evidence"},
    "ddoctor/analysis/stragglers.py": {"ddoctor.evidence", "ddoctor.analysis.work_imbalance"},
    "ddoctor/analysis/cpu_contention.py": {"ddoctor.evidence", "ddoctor.analysis.work_imbalance"},
    "ddoctor/analysis/work_imbalance.py": {"ddoctor.evidence"},
    "ddoctor/analysis/ddp_options.py": {"ddoctor.evidence"},
    "ddoctor/analysis/endings.py": {"ddoctor.evidence"},
    "ddoctor/analysis/collective_mismatch.py": {"ddoctor.analysis.endings", "ddoctor.evidence"},
    "ddoctor/analysis/slow_links.py": {"ddoctor.evidence"},
    "ddoctor/analysis/cuda_oom.py": {
        "ddoctor.analysis.endings",
        "ddoctor.evidence",
        "ddoctor.models",
        "ddoctor.analysis.memory_fixes",
    },
    "ddoctor/analysis/memory_fixes.py": {"ddoctor.evidence", "ddoctor.models"},
    "ddoctor/analysis/slow_rails.py": {"ddoctor.evidence", "ddoctor.analysis.slow_links"},
    "ddoctor/analysis/live_data_starvation.py": {
        "ddoctor.evidence",
        "ddoctor.analysis.live_stragglers",
        "ddoctor.analysis.live_state",
    },
    "ddoctor/analysis/live_stragglers.py": {
        "ddoctor.evidence",
        "ddoctor.models",
        "ddoctor.analysis.live_state",
    },
    "ddoctor/analysis/flight_records.py": {
        "ddoctor.analysis.endings",
        "ddoctor.evidence",
        "ddoctor.models",
        "ddoctor.analysis.live_state",
    },
    "ddoctor/forecast": {
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.forecast",
        "ddoctor.memory_sweep.work",
        "ddoctor.knowledge",
        "ddoctor.analysis.scaling",
    },
    "ddoctor/headroom": {
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.forecast",
        "ddoctor.probing.world",
        "ddoctor.memory_sweep",
    },
    "ddoctor/analysis/gpu_lines.py": {"ddoctor.evidence"},
    "ddoctor/analysis/live_state.py": {
        "ddoctor.analysis.endings",
        "ddoctor.evidence",
        "ddoctor.analysis.gpu_lines",
        "ddoctor.models",
    },
    "ddoctor/live": {
        "ddoctor.collect",
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.analysis.gpu_lines",
        "ddoctor.proc.usage",
        "ddoctor.knowledge",
        "ddoctor.cluster.launcher_environment",
        "ddoctor.live",
        "ddoctor.proc.processes",
        "ddoctor.proc.memory",
        "ddoctor.analysis.live_state",
    },
    "ddoctor/recorder": {
        "ddoctor.evidence",
        "ddoctor.memory_tracking.operators",
        "ddoctor.probing.world",
        "ddoctor.memory_sweep",
        "ddoctor.probing.journal",
        "ddoctor.recorder",
    },
    "ddoctor/probing/size_sweep.py": {"ddoctor.evidence", "ddoctor.probing.world"},
    "probes": {
        "ddoctor.collect",
        "ddoctor.errors",
        "ddoctor.evidence",
        "ddoctor.probing.world",
        "ddoctor.memory_sweep",
        "ddoctor.analysis.slow_links",
        "ddoctor.analysis.slow_rails",
        "ddoctor.probing.size_sweep",
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
