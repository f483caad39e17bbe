"""Who may import whom. `docs/contributing.md` gives the reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "pynvml", "accelerate", "diffusers", "transformers", "matplotlib", "jinja2"}
ROOMS = sorted(path.parent for path in (ROOT / "ddoctor").glob("*/__init__.py"))

ALLOWED = {
    "ddoctor/errors.py": set(),
    "ddoctor/models.py": set(),
    "ddoctor/units.py": {"ddoctor.errors"},
    "ddoctor/evidence": {"ddoctor.errors", "ddoctor.evidence", "ddoctor.models"},
    # The words of a fix are the same for all evidence: a table, which no check has to ask for.
    "ddoctor/analysis": {
        *("ddoctor.analysis", "ddoctor.evidence", "ddoctor.knowledge", "ddoctor.models")
    },
    "checks": {"ddoctor.analysis", "ddoctor.evidence", "ddoctor.models"},
}
"""What judges imports what is judged, and nothing that looks, measures or reports."""

PURE = {"__future__", "ast", "collections", "dataclasses", "difflib", "functools", "itertools"}
PURE |= {"math", "re", "shlex", "statistics", "string", "typing"}


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


def room(module: str) -> str:
    """The package of a module, or the module itself where it stands at the root."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_point_downwards(place: str) -> None:
    for path in sources(place):
        for module in imports(path):
            if inside(module, {"ddoctor"}):
                assert inside(module, ALLOWED[place]), f"{path} imports {module}"


def test_no_cycle_between_packages() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources("ddoctor"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        mine = room(".".join(parts))
        ours = {room(module) for module in imports(path) if inside(module, {"ddoctor"})}
        graph.setdefault(mine, set()).update(ours - {mine, "ddoctor"})
    # It raises CycleError, which names the packages of the cycle.
    assert len([*TopologicalSorter(graph).static_order()]) >= len(ROOMS)


def test_models_need_the_standard_library_alone() -> None:
    assert set(imports(ROOT / "ddoctor/models.py")) <= PURE | {"collections.abc", "enum"}


def test_checks_judge_and_do_nothing_else() -> None:
    for path in sources("checks"):
        for module in imports(path):
            top = module.partition(".")[0]
            assert top in PURE | {"ddoctor", "packaging"}, f"{path} imports {module}"


def test_a_long_check_says_why() -> None:
    for path in sources("checks"):
        text = path.read_text()
        assert ("\n# Above 150 lines: " in text) is (len(text.splitlines()) > 150), path


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    for place in ("ddoctor", "checks"):
        for path in sources(place):
            # It is loaded when the script itself has loaded torch, or where a model is at hand.
            if path.parent.name in ("recorder", "memory_sweep", "memory_tracking", "model"):
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
