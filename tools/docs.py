"""Write the pages of the docs that are generated from the code: ``make docs``."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import get_args, get_type_hints

from ddoctor import check_catalog
from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.section import Known, Part, Section
from ddoctor.models import Command

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = "<!-- Written by `make docs`: change the code, not this file. -->"
GENERIC = {"host", "unseen", "printed"}

EVIDENCE = f"""{GENERATED}

# Evidence sections

Each section is one kind of evidence about one host. A check requests sections by the types of its
parameters. The first table lists the sections that each command makes; `diagnose` reads all of
them from bundles. Every section also has the fields `host`, `unseen` and `printed`, which the
tables omit. The value `None` means that a field could not be read; it never means zero.
"""

CAUSES = f"""{GENERATED}

# Causes

`ddoctor explain NAME` shows the page of a cause. The last column lists the commands that can find
the cause; `ddoctor diagnose` finds it in their bundles.

| cause | what is wrong | commands |
| --- | --- | --- |
"""


def evidence() -> str:
    """The page `evidence.md`, which lists all sections."""
    kinds = sorted(section_types(), key=lambda kind: kind.label())
    users = _users()
    pages = [_section(kind, users.get(kind, {})) for kind in kinds]
    return "\n".join((EVIDENCE, *_by_command(kinds), *pages))


def causes() -> str:
    """The page `causes.md`, which lists all causes of ddoctor."""
    return CAUSES + "".join(
        f"| `{check.name}` | {_cell(check.title)} | {_code(_commands(check))} |\n"
        for check in check_catalog.discover()
        if not check.package
    )


PAGES = {"evidence.md": evidence, "causes.md": causes}


def _by_command(kinds: Iterable[type[Section]]) -> Iterator[str]:
    yield "| command | sections |\n| --- | --- |"
    for command in get_args(Command):
        made = [kind for kind in kinds if command in kind.commands]
        if made:
            links = ", ".join(f"[{kind.label()}](#{kind.label()})" for kind in made)
            yield f"| `{command}` | {links} |"
    yield ""


def _section(kind: type[Section], users: dict[str, bool]) -> str:
    rows = [f"## {kind.label()}\n", f"`{kind.__module__}.{kind.__name__}`: {_summary(kind)}\n"]
    rows.append(f"Made by {_code(kind.commands)}; get it with `{kind.obtain()}`.\n")
    needed = [f"`{name}`" for name, optional in users.items() if not optional]
    used = [f"`{name}`" for name, optional in users.items() if optional]
    rows += [f"Needed by {', '.join(needed)}.\n"] * bool(needed)
    rows += [f"Used where present by {', '.join(used)}.\n"] * bool(used)
    rows += ["No check uses it.\n"] * (not users)
    for part in _parts(kind):
        fields = _fields(part)
        rows += [f"**{part.__name__}**: {_summary(part)}\n"] * (part is not kind)
        rows += ["| field or property | type | meaning |\n| --- | --- | --- |"] * bool(fields)
        rows += [f"| `{name}` | `{_cell(kept)}` | {_cell(doc)} |" for name, kept, doc in fields]
        rows.append("")
    return "\n".join(rows)


def _parts(kind: object) -> dict[type[Part] | type[Section], None]:
    """A section and the types of its rows at any depth, each once."""
    found: dict[type[Part] | type[Section], None] = {}
    if isinstance(kind, type) and issubclass(kind, Part | Section):
        found[kind] = None
        hints = get_type_hints(kind)
        for name in kind.__struct_fields__:
            if name not in GENERIC:
                found |= _parts(hints[name])
    for argument in get_args(kind):
        found |= _parts(argument)
    return found


def _fields(kind: type) -> list[tuple[str, str, str]]:
    """Name, type and docstring of each field and property, including inherited ones."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Part | Section) and base not in (Part, Section):
            found |= _own_fields(base)
    return [(name, *rest) for name, rest in found.items()]


def _own_fields(kind: type) -> dict[str, tuple[str, str]]:
    (tree,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for line, after in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(line, ast.FunctionDef) and not line.name.startswith("_") and line.returns:
            found[_called(line)] = (ast.unparse(line.returns), ast.get_docstring(line) or "")
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        doc = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            doc = inspect.cleandoc(str(after.value.value))
        default = f" = {ast.unparse(line.value)}" if line.value is not None else ""
        kept = ast.unparse(line.annotation) + default
        if not kept.startswith("ClassVar"):
            found[line.target.id] = (kept, doc)
    return found


def _called(function: ast.FunctionDef) -> str:
    """How a property or a method is written: `count`, `share(*phases)`."""
    decorators = [ast.unparse(one) for one in function.decorator_list]
    if any(one in ("property", "cached_property") for one in decorators):
        return function.name
    function.args.args = function.args.args[1:]
    for argument in (*function.args.args, *filter(None, [function.args.vararg])):
        argument.annotation = None
    return f"{function.name}({ast.unparse(function.args)})"


def _users() -> dict[type[Section], dict[str, bool]]:
    """The checks that use each section, and whether the section is optional for each."""
    found: dict[type[Section], dict[str, bool]] = {}
    for check in check_catalog.discover():
        for way in check.ways:
            for need in way.needs.values():
                users = found.setdefault(need.section, {})
                users[check.name] = need.optional and users.get(check.name, True)
    return found


def _commands(check: check_catalog.Check) -> tuple[Command, ...]:
    possible: set[Command] = set()
    for way in check.ways:
        needed = [
            set(need.section.commands)
            for need in way.needs.values()
            if not need.optional and not issubclass(need.section, Known)
        ]
        possible |= set.intersection(*needed)
    return tuple(command for command in get_args(Command) if command in possible)


def _summary(kind: type) -> str:
    return _cell(inspect.getdoc(kind) or "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {', '.join(PAGES)}\n")
