"""What a script sets: environment variables, switches of torch, where and how ranks join."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddoctor.evidence.source_facts import SourceSetting
from ddoctor.evidence.source_lines import SourceLine
from ddoctor.script.assigned import assigned
from ddoctor.script.calls import USES_AT_IMPORT, uses_cuda
from ddoctor.script.names import source
from ddoctor.script.occurrences import imported_names
from ddoctor.script.options import changes, held, option_name
from ddoctor.script.program import Program
from ddoctor.script.scopes import Scope, Statement
from ddoctor.script.source_calls import within
from ddoctor.script.source_lines import At, cut

SETTINGS = (
    *("torch.backends.", "os.environ[", ".use_cache"),
    *(".world_size", ".dist_url", ".init_method", ".master_addr", ".main_addr"),
)
"""Beginnings of what a script sets.

The others are attributes: of a model's config, and of options on where and how ranks join.
"""

VISIBLE = "os.environ[CUDA_VISIBLE_DEVICES]"


def settings(program: Program, at: At) -> Iterator[SourceSetting]:
    """What a script sets of torch, its environment, and how ranks join."""
    for statement in program.statements:
        for name, value in assigned(statement):
            if name.startswith(SETTINGS):
                yield SourceSetting(
                    name=name,
                    value=cut(source(value)),
                    at=at(statement.node, statement.scope),
                    within=tuple(within(statement.around, program)),
                    after=_first_cuda(statement, program, at) if name == VISIBLE else None,
                    option=_option(value, statement.scope, program) if name == VISIBLE else "",
                )


def _option(value: ast.expr, scope: Scope, program: Program) -> str:
    found = held(value, scope, program)
    option = option_name(*found, program) if found is not None else ""
    return option if not changes(option, program) else ""


def _first_cuda(statement: Statement, program: Program, at: At) -> SourceLine | None:
    """The first line that uses CUDA, of those that surely run before a statement."""
    scope, line = statement.scope, statement.node.lineno
    for node in scope.module.tree.body:
        if (
            isinstance(node, ast.Import | ast.ImportFrom)
            and node.lineno < line
            and any(map(USES_AT_IMPORT.match, imported_names(node)))
        ):
            return at(node, next(one for one in program.scopes if one.module is scope.module))
    earlier = [call for call in scope.calls if call.node.lineno < line]
    if scope.name:
        # The top level of a module runs as it is imported, mostly before any function.
        begin = scope.node.lineno  # type: ignore[attr-defined]
        earlier += [
            one
            for one in program.calls
            if not one.scope.name
            and (one.scope.module is not scope.module or one.node.lineno < begin)
        ]
    for call in earlier:
        found = program.sure(call, uses_cuda)
        if found is not None:
            return at(found.node, found.scope)
    return None
