"""DataLoaders of the training whose sampler knows nothing of other ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.script.arguments import LOADER, keywords
from ddoctor.script.in_training import holds, takes, values
from ddoctor.script.names import source, variable
from ddoctor.script.program import Program
from ddoctor.script.ranks import lower
from ddoctor.script.same import MOST_STEPS, varies
from ddoctor.script.scopes import Call, Scope
from ddoctor.script.streams import methods_of, words_of

POSITIONS = {"sampler": 3, "batch_sampler": 4}
BATCHES = "torch.utils.data.BatchSampler"
ONCE = ("torch.utils.data.RandomSampler", "torch.utils.data.SubsetRandomSampler")
"""Samplers that yield each item once."""
AGAIN = "torch.utils.data.WeightedRandomSampler"
"""It draws with replacement, so ranks with other seeds have other samples."""
OWN = ("torch.utils.data.Sampler", BATCHES)
DRAWS = frozenset({"choice", "choices", "multinomial", "randint", "integers"})
OF_RANKS = frozenset(
    {
        *("rank", "ranks", "world", "replica", "replicas", "distributed", "dist", "shard"),
        *("process", "processes", "procid", "node", "islice"),
    }
)
SEEDS = ("manual_seed", "seed_everything", "set_seed")


@dataclass(frozen=True)
class _Made:
    """What makes a sampler; None stands for another value."""

    node: ast.Call | None
    scope: Scope


def plain_samplers(program: Program) -> Iterator[tuple[Call, ast.AST, Scope]]:
    """The DataLoaders, each with what makes its sampler and the function around that."""
    for call in program.by_name.get(LOADER, ()):
        given = _given(call, program)
        if given is None or takes(call.around, call.scope) is False:
            continue
        made = [*_makers(given, call.scope, program, MOST_STEPS)]
        nodes = [one.node for one in made if one.node is not None and _is_plain(one, program)]
        if nodes and len(nodes) == len(made):
            yield call, nodes[0], made[0].scope


def _given(call: Call, program: Program) -> ast.expr | None:
    named = dict(keywords(call, program))
    for name, position in POSITIONS.items():
        given = call.node.args[position] if len(call.node.args) > position else named.get(name)
        if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            return given
    return None


def _makers(node: ast.expr | None, scope: Scope, program: Program, steps: int) -> Iterator[_Made]:
    """The calls that may make a sampler of the training."""
    if isinstance(node, ast.IfExp):
        known = holds(node.test, scope)
        for value, taken in ((node.body, True), (node.orelse, False)):
            if known is not (not taken):
                yield from _makers(value, scope, program, steps)
    elif isinstance(node, ast.Call) and scope.named(node.func) == BATCHES and steps:
        named = next((one.value for one in node.keywords if one.arg == "sampler"), None)
        inner = node.args[0] if node.args else named
        yield from _makers(inner, scope, program, steps - 1)
    elif isinstance(node, ast.Call):
        called = program.function(node) if steps else None
        if called is None:
            yield _Made(node, scope)
            return
        for statement in program.returns.get(called, ()):
            reached = takes(statement.around, called)
            result = getattr(statement.node, "value", None)
            if reached is not False:
                yield from _makers(result, called, program, steps - 1)
            if reached:
                break
    elif node is not None and (name := variable(node)) and steps:
        found = values(name, scope, program)
        for one, where in found if found is not None else [(None, scope)]:
            yield from _makers(one, where, program, steps - 1)
    else:
        yield _Made(None, scope)


def _is_plain(made: _Made, program: Program) -> bool:
    """Whether a sampler gives all ranks samples of the same items."""
    node, scope = made.node, made.scope
    if node is None:
        return False
    name = scope.named(node.func)
    given = {word.arg: word.value for word in node.keywords}
    if _names_rank(node, scope):
        return False
    if name in ONCE and "replacement" not in given:
        return True
    if name == AGAIN or name in ONCE:
        return _draws_alike(given.get("generator"), scope, program)
    if not {*program.bases.get(name, ())} & {*OWN}:
        return False
    words = frozenset(words_of(methods_of(name, program)))
    again = bool(DRAWS & words)
    return not OF_RANKS & words and (not again or _draws_alike(None, scope, program))


def _names_rank(node: ast.Call, scope: Scope) -> bool:
    """Whether a rank, or the number of ranks, gets to the sampler."""
    given = [*node.args, *(word.value for word in node.keywords if word.arg != "generator")]
    shown = [one for value in given if variable(value) for one in scope.shown(variable(value))]
    return any(OF_RANKS & lower(source(one)) for one in (*given, *shown))


def _draws_alike(generator: ast.expr | None, scope: Scope, program: Program) -> bool:
    """Whether all ranks draw the same numbers: by one generator, or by one seed of the process."""
    name = variable(generator) if generator is not None else ""
    if isinstance(generator, ast.Call):
        seeds = [(one, scope) for one in generator.args]
        return bool(seeds) and all(varies(one, at, program) == "same" for one, at in seeds)
    calls = [call for call in program.calls if call.method in SEEDS]
    if name:
        calls = [call for call in calls if call.on == name and call.scope is scope]
        shown = scope.shown(name)
        if not calls and len(shown) == 1 and isinstance(shown[0], ast.Call):
            return _draws_alike(shown[0], scope, program)
    seeds = [(call.node.args[0], call.scope) for call in calls if call.node.args]
    return bool(seeds) and all(varies(one, at, program) == "same" for one, at in seeds)
