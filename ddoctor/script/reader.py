"""Reads a training script and its own modules into evidence; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import (
    SourceAlone,
    SourceAveraging,
    SourceBatches,
    SourceCollating,
    SourceDiscarded,
    SourceDivided,
    SourceEvaluation,
    SourceFixed,
    SourceFork,
    SourceFrozen,
    SourceGathered,
    SourceKeys,
    SourceLayer,
    SourceLocalCount,
    SourceMixture,
    SourceNoise,
    SourceOtherUnit,
    SourceOutside,
    SourceOwnBranch,
    SourceOwnSkip,
    SourcePairs,
    SourcePartial,
    SourcePrecision,
    SourceRandomSplit,
    SourceReadEarly,
    SourceReading,
    SourceReduced,
    SourceRemade,
    SourceReplaced,
    SourceSampler,
    SourceScaled,
    SourceSchedule,
    SourceSeed,
    SourceShared,
    SourceSize,
    SourceSortedShare,
    SourceStale,
    SourceSwitch,
    SourceTarget,
    SourceTeacher,
    SourceTest,
    SourceTokenMean,
    SourceTurns,
    SourceTwice,
    SourceTypes,
    SourceUnfrozen,
    SourceUnreached,
    SourceWorld,
    SourceZeroed,
)
from ddoctor.evidence.source_lines import SourceLine, SourceLoop
from ddoctor.script.added_layers import added_layers
from ddoctor.script.alone import trains_alone
from ddoctor.script.batches import own_rates, scales_by_ranks
from ddoctor.script.chances import own_chances
from ddoctor.script.checkpoints import restored
from ddoctor.script.clipping import clipped_in_parts, clipped_too_late
from ddoctor.script.datasets import datasets
from ddoctor.script.discarded_passes import discarded_passes
from ddoctor.script.evaluations import evaluations_with_graphs
from ddoctor.script.exhausting import exhausts
from ddoctor.script.factors import divided_losses, scaled_twice
from ddoctor.script.factors import of_one_rank as rates_of_one_rank
from ddoctor.script.fixed_padding import fixed_padding
from ddoctor.script.fixed_work import fixed_work
from ddoctor.script.float16 import half_models, unscaled_float16
from ddoctor.script.forks import collates_on_cuda, forks
from ddoctor.script.frozen import reentrant
from ddoctor.script.frozen_in_vain import frozen_in_vain
from ddoctor.script.gathered import without_gradients
from ddoctor.script.kept_values import kept_values
from ddoctor.script.large_tables import large_tables
from ddoctor.script.leaf_units import leaf_units
from ddoctor.script.local_counts import local_counts
from ddoctor.script.losses import kept
from ddoctor.script.mixed_layers import mixed_layers
from ddoctor.script.mixed_types import mixed_types
from ddoctor.script.modules import Modules
from ddoctor.script.moving_targets import moving_targets
from ddoctor.script.names import source, variable
from ddoctor.script.noise import same_noise
from ddoctor.script.numbered_texts import numbered_texts
from ddoctor.script.occurrences import first_lines, frameworks
from ddoctor.script.outside_wrapper import outside_wrapper
from ddoctor.script.own_averaging import own_averaging
from ddoctor.script.own_batches import own_batches
from ddoctor.script.own_branches import own_branches, own_catches, own_clocks, own_skips
from ddoctor.script.own_keys import over_own_keys
from ddoctor.script.own_layers import own_layers
from ddoctor.script.own_sizes import own_sizes
from ddoctor.script.pair_targets import without_offset
from ddoctor.script.partial_metrics import on_loaders, partial_metrics
from ddoctor.script.passes_of_one_rank import passes_of_one_rank
from ddoctor.script.past_wrapper import past_wrapper
from ddoctor.script.precision import precisions
from ddoctor.script.program import Program
from ddoctor.script.random_splits import RandomSplit, random_splits
from ddoctor.script.rank_names import rank_names
from ddoctor.script.reduced_losses import reduced_losses
from ddoctor.script.remade_loaders import remade_loaders
from ddoctor.script.replaced_layers import replaced_layers
from ddoctor.script.samplers import plain_samplers
from ddoctor.script.scaled_gradients import scaled_gradients
from ddoctor.script.schedule_units import other_units
from ddoctor.script.schedules import of_one_rank
from ddoctor.script.scopes import Call, Scope, Walk
from ddoctor.script.seeding import constant_seeds
from ddoctor.script.settings import settings
from ddoctor.script.shared_files import read_too_early, shared_files
from ddoctor.script.sorted_shares import sorted_shares
from ddoctor.script.source_calls import is_kept, source_call
from ddoctor.script.source_lines import At, ModuleLines, cut
from ddoctor.script.splits import splits
from ddoctor.script.stale_optimizers import stale_optimizers
from ddoctor.script.step_order import (
    evaluated_in_training_mode,
    hooks_of_each_step,
    left_in_evaluation,
    made_in_each_step,
    never_synced,
    never_zeroed,
    zeroed_before_the_step,
)
from ddoctor.script.still_epochs import still_epochs
from ddoctor.script.stopping import own_divergences, own_stops
from ddoctor.script.summed_gradients import summed_gradients
from ddoctor.script.switches import Test
from ddoctor.script.sync_turns import wrong_turns
from ddoctor.script.teachers import teachers
from ddoctor.script.token_means import token_means
from ddoctor.script.told_ranks import told_ranks
from ddoctor.script.unfrozen import unfrozen
from ddoctor.script.unreached_samplers import unreached_samplers, unused_samplers
from ddoctor.script.unused_layers import unused_layers
from ddoctor.script.whole_reads import whole_reads

MOST_FACTS = 2000
"""Of each kind; a script of 5,000 lines has some hundred."""
LOADS = ("load", "from_pretrained", "load_file", "load_state_dict", "load_checkpoint")
"""Functions that read a model or its state from a file."""
Fact = TypeVar("Fact")


class Placed(Protocol):
    """A call, a statement, or what a reader has found there."""

    @property
    def node(self) -> ast.AST:
        """Where it is."""

    @property
    def scope(self) -> Scope:
        """The function around it."""


def read(script: Path, folders: Sequence[Path]) -> Script:
    """Read a script, and the modules that it imports from its folder or from ``folders``.

    ``folders`` are those that the launch line puts on the path of imports. Files that cannot be
    read are in ``unseen``; this never raises.
    """
    modules = Modules.read(script, folders)
    marks = rank_names(modules.found)
    walks = [Walk(module, marks) for module in modules.found]
    program = Program(walks)
    lines = {walk.scopes[0].module: ModuleLines(walk.scopes[0].module) for walk in walks}

    def at(node: ast.AST, scope: Scope) -> SourceLine:
        return lines[scope.module].at(node, scope.name)

    def of(one: Placed) -> SourceLine:
        return at(one.node, one.scope)

    def perhaps(one: Placed | None) -> SourceLine | None:
        return of(one) if one is not None else None

    layers = [*islice(unused_layers(walks, program), MOST_FACTS)]
    classes = {node.name for walk in walks for node in walk.scopes[0].module.nodes.of(ast.ClassDef)}
    on_cuda = {
        call.method
        for call in program.calls
        if call.method in classes and "cuda" in source(call.node)
    }
    # The types of these fields are not known to a type checker.
    named: Mapping[str, Any] = first_lines(walks, at)
    return Script(
        files=tuple(module.shown for module in modules.found),
        lines=sum(len(module.lines) for module in modules.found),
        imports=_first(frameworks(walks, at)),
        calls=_first(
            source_call(call, program, at) for call in program.calls if is_kept(call, program)
        ),
        loops=_first(_loops(program, at)),
        settings=_first(settings(program, at)),
        datasets=_first(
            one for walk in walks for one in datasets(walk.scopes[0], program, at, on_cuda)
        ),
        collates_on_cuda=_first(
            SourceCollating(loader=of(one.loader), at=of(one.at))
            for one in collates_on_cuda(program)
        ),
        forks=_first(
            SourceFork(
                at=of(one.at),
                before=of(one.before),
                child=perhaps(one.child),
            )
            for one in forks(program)
        ),
        whole_reads=_first(
            SourceReading(at=of(one), loader=of(loader)) for one, loader in whole_reads(program)
        ),
        constant_seeds=_first(
            SourceSeed(function=name, at=at(node, scope), by_worker=by_worker)
            for name, node, scope, by_worker in constant_seeds(program)
        ),
        over_own_keys=_first(
            SourceKeys(at=of(call), key=at(key, scope))
            for call, key, scope in over_own_keys(program)
        ),
        own_branches=_first(
            SourceOwnBranch(at=of(call), test=cut(source(test)))
            for call, test in own_branches(program)
        ),
        own_skips=_first(
            SourceOwnSkip(at=of(one), test=cut(source(test)), ends=isinstance(one.node, ast.Break))
            for one, test in own_skips(program)
        ),
        own_clocks=_first(
            SourceOwnSkip(at=of(one), test=cut(source(test)), ends=True)
            for one, test in own_clocks(program)
        ),
        fixed_work=_first(
            SourceFixed(at=of(call), buffer=buffer) for call, buffer in fixed_work(program)
        ),
        wrong_turns=_first(
            SourceTurns(
                at=of(held),
                synced=source(synced.test),
                step=of(step),
                test=source(turn.test),
            )
            for held, synced, step, turn in wrong_turns(program)
        ),
        own_chances=_first(
            SourceOwnSkip(at=of(one), test=cut(source(test)), ends=isinstance(one.node, ast.Break))
            for one, test in own_chances(program)
        ),
        own_catches=_first(at(node, scope) for node, scope in own_catches(program)),
        unscaled_float16=perhaps(unscaled_float16(program)),
        half_models=_first(of(one) for one in half_models(program)),
        never_synced=perhaps(never_synced(program)),
        read_too_early=_first(
            SourceReadEarly(at=of(load), save=of(save)) for save, load in read_too_early(program)
        ),
        gathered=_first(
            SourceGathered(at=of(call), similar=of(similar))
            for call, similar in without_gradients(program)
        ),
        passes_of_one_rank=_first(of(one) for one in passes_of_one_rank(program)),
        reduced_losses=_first(
            SourceReduced(at=of(call), divides=at(node, call.scope))
            for call, node in reduced_losses(program)
        ),
        stale_optimizers=_first(
            SourceStale(at=of(made), wrap=of(wrap)) for made, wrap in stale_optimizers(program)
        ),
        remade_optimizers=_first(of(one) for one in made_in_each_step(program)),
        repeated_hooks=_first(of(one) for one in hooks_of_each_step(program)),
        zeroed_early=_first(
            SourceZeroed(at=of(zero), step=of(step))
            for zero, step in zeroed_before_the_step(program)
        ),
        replaced_layers=_first(
            SourceReplaced(at=of(layer), optimizer=of(optimizer))
            for layer, optimizer in replaced_layers(program)
        ),
        discarded_passes=_first(
            SourceDiscarded(made=of(one.made), at=of(one.used)) for one in discarded_passes(program)
        ),
        moving_targets=_first(
            SourceTarget(at=of(one.called), averaged=of(one.averaged))
            for one in moving_targets(program)
        ),
        teachers=_first(
            SourceTeacher(at=of(one.called), mode=of(one.evaluated)) for one in teachers(program)
        ),
        other_units=_first(
            SourceOtherUnit(
                made=of(one.made),
                at=of(one.moved),
                counts=one.counts,
            )
            for one in other_units(program)
        ),
        scaled_gradients=_first(
            SourceScaled(
                at=of(one),
                scale=of(scale),
                applies=one.method == "step",
            )
            for one, scale in scaled_gradients(program)
        ),
        clipped_too_late=_first(of(one) for one in clipped_too_late(program)),
        clipped_in_parts=_first(of(one) for one in clipped_in_parts(program)),
        evaluations_with_graphs=_first(
            SourceEvaluation(
                at=of(one.model),
                keeps=at(one.keeps, one.model.scope) if one.keeps is not None else None,
            )
            for one in evaluations_with_graphs(program)
        ),
        outside_wrapper=_first(
            SourceOutside(at=of(made), name=name, optimizer=of(optimizer))
            for made, name, optimizer in outside_wrapper(program)
        ),
        trains_alone=next(
            (
                SourceAlone(at=of(one.loop), joins=of(one.joins))
                for one in [trains_alone(program)]
                if one is not None
            ),
            None,
        ),
        large_tables=_first(of(one) for one in large_tables(program)),
        never_zeroed=perhaps(never_zeroed(program)),
        evaluated_in_training_mode=_first(of(one) for one in evaluated_in_training_mode(program)),
        left_in_evaluation=_first(of(one) for one in left_in_evaluation(program)),
        partial_metrics=_first(
            SourcePartial(
                loop=at(one.loop, one.scope),
                loader=of(one.loader),
                report=of(one.report),
            )
            for one in partial_metrics(program)
        ),
        local_counts=_first(
            SourceLocalCount(
                at=at(one.division, one.scope), reduced=at(one.reduced.node, one.scope)
            )
            for one in local_counts(program)
        ),
        evaluates_loaders=on_loaders(program),
        leaf_units=_first(of(one) for one in leaf_units(program)),
        remade_loaders=_first(
            SourceRemade(loader=of(made), at=of(again)) for made, again in remade_loaders(program)
        ),
        shared_files=_first(
            SourceShared(
                at=of(save),
                moved=perhaps(move),
            )
            for save, move in shared_files(program)
        ),
        own_rates=_first(
            chain(
                (of(one) for one in own_rates(program)),
                (at(one.within, one.scope) for one in rates_of_one_rank(program)),
            )
        ),
        scales_by_ranks=perhaps(scales_by_ranks(program)),
        still_epochs=_first(of(one) for one in still_epochs(program)),
        own_stops=_first(of(one) for one in own_stops(program)),
        sorted_shares=_first(
            SourceSortedShare(at=at(*share), sorts=at(*sort))
            for share, sort in sorted_shares(program)
        ),
        pairs_of_rank0=_first(
            SourcePairs(at=of(loss), targets=at(numbers, loss.scope))
            for loss, numbers in without_offset(program)
        ),
        own_divergences=_first(at(*one) for one in own_divergences(program)),
        same_noise=_first(
            SourceNoise(at=of(call), seed=of(seed)) for call, seed in same_noise(program)
        ),
        token_means=_first(
            SourceTokenMean(
                at=at(one.loss, one.scope),
                back=of(one.back),
                alike=cut(one.alike),
            )
            for one in token_means(program)
        ),
        divided_losses=_first(
            SourceDivided(at=at(one.within, one.scope), back=of(call))
            for one, call in divided_losses(program)
        ),
        scaled_twice=_first(
            SourceTwice(
                at=of(call),
                first=at(first.within, first.scope),
                second=at(second.within, second.scope),
            )
            for call, first, second in scaled_twice(program)
        ),
        precisions=_first(
            SourcePrecision(at=of(one), values=one.values, flag=one.flag, place=one.place)
            for one in precisions(program)
        ),
        frozen_checkpoints=_first(
            SourceFrozen(at=of(call), frozen=at(node, scope))
            for call, node, scope in reentrant(program)
        ),
        schedules_of_one_rank=_first(
            SourceSchedule(
                at=of(one.made),
                name=one.name,
                counts=at(one.counts, one.scope),
            )
            for one in of_one_rank(program)
        ),
        restored=_first(of(one) for one in restored(program)),
        told_ranks=_first(
            SourceWorld(at=of(one), option=one.option, given=one.given)
            for one in told_ranks(program)
        ),
        own_batches=_first(
            SourceBatches(loop=of(loop), at=at(made.node, made))
            for loop, made in own_batches(program)
        ),
        plain_samplers=_first(
            SourceSampler(loader=of(loader), at=at(node, scope))
            for loader, node, scope in plain_samplers(program)
        ),
        unreached_samplers=_first(
            SourceUnreached(
                loader=of(loader),
                at=at(node, around),
                calls=perhaps(call),
            )
            for loader, (node, around), call in unreached_samplers(program)
        ),
        unused_samplers=_first(of(one) for one in unused_samplers(program)),
        mixed_layers=_first(
            SourceMixture(at=of(one), trained=one.trained) for one in mixed_layers(program)
        ),
        mixed_types=_first(
            SourceTypes(
                at=of(one.call),
                loaded=of(one.loaded),
                model=one.model,
            )
            for one in mixed_types(program)
        ),
        own_averaging=_own_averaging(program, at),
        summed_gradients=perhaps(summed_gradients(program)),
        random_splits=_first(
            SourceRandomSplit(
                at=of(one.call),
                argument=one.argument,
                seed=_seed(one, at),
            )
            for one in random_splits(program)
        ),
        numbered_texts=_first(of(one) for one in numbered_texts(program)),
        frozen_in_vain=_first(of(one) for one in frozen_in_vain(program)),
        fixed_padding=_first(of(one) for one in fixed_padding(program)),
        added_layers=_first(of(one) for one in added_layers(program)),
        unfrozen=_first(
            SourceUnfrozen(
                at=of(one.call),
                wrapper=of(one.wrapper),
            )
            for one in unfrozen(program)
        ),
        past_wrapper=_first(of(one) for one in past_wrapper(program)),
        unused_layers=_first(of(one) for one in layers if not one.unless),
        switched_layers=_first(
            SourceSwitch(
                at=of(one),
                uses=tuple(tuple(map(_test, tests)) for tests in one.unless),
            )
            for one in layers
            if one.unless
        ),
        own_layers=_first(
            SourceLayer(
                name=one.name,
                at=at(one.node, one.around),
                repeated=one.repeated,
                of_torch=one.of_torch,
            )
            for one in own_layers(walks, program)
            if not modules.unseen and not modules.broken
        ),
        own_sizes=_first(
            SourceSize(
                at=of(one.made),
                name=one.name,
                terms=tuple(one.terms),
                defaults=program.defaults,
                halves=one.halves,
            )
            for one in own_sizes(program)
        ),
        set_fields=frozenset(_set_fields(modules)),
        kept_values=_first(of(one) for one in kept_values(program)),
        kept_losses=_first(of(one) for one in kept(program)),
        splits=_first(at(node, scope) for node, scope in splits(program)),
        loads_on_one_rank=next(
            (
                of(call)
                for call in program.calls
                if call.method in LOADS and any(one.kind == "one-rank" for one in call.around)
            ),
            None,
        ),
        broken=tuple(modules.broken),
        unseen=tuple(modules.unseen),
        **named,
    )


def _set_fields(modules: Modules) -> Iterator[str]:
    for module in modules.found:
        for node in module.nodes.of(ast.Attribute):
            if isinstance(node.ctx, ast.Store) and variable(node.value) != "self":
                yield node.attr


def _first(facts: Iterator[Fact]) -> tuple[Fact, ...]:
    return tuple(islice(facts, MOST_FACTS))


def _loops(program: Program, at: At) -> Iterator[SourceLoop]:
    for statement in program.statements:
        if statement.node in program.training:
            yield SourceLoop(
                at=at(statement.node, statement.scope),
                kind="training",
                exhausts=exhausts(statement, program),
            )
        elif statement.node in program.epochs:
            yield SourceLoop(at=at(statement.node, statement.scope), kind="epoch")


def _test(test: Test) -> SourceTest:
    return SourceTest(
        option=test.option,
        given=test.given,
        operator=test.operator,
        value=test.value,
        negated=test.negated,
    )


def _seed(one: RandomSplit, at: At) -> SourceLine | None:
    if one.seed is None:
        return None
    call = one.seed if isinstance(one.seed, Call) else one.call
    return at(call.node, call.scope)


def _own_averaging(program: Program, at: At) -> SourceAveraging | None:
    found = own_averaging(program)
    if found is None:
        return None
    return SourceAveraging(
        model=at(found.model.node, found.model.scope),
        average=at(found.average.node, found.average.scope),
        seed=at(found.seed.node, found.seed.scope) if found.seed is not None else None,
    )
