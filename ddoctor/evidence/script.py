"""What the source of a training script says: its own files, parsed and never run."""

from __future__ import annotations

from ddoctor.evidence.section import Section
from ddoctor.evidence.source_facts import (
    SourceAlone,
    SourceAveraging,
    SourceBatches,
    SourceCollating,
    SourceDataset,
    SourceDiscarded,
    SourceDivided,
    SourceEvaluation,
    SourceFixed,
    SourceFork,
    SourceFrozen,
    SourceGathered,
    SourceImport,
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
    SourceSetting,
    SourceShared,
    SourceSize,
    SourceSortedShare,
    SourceStale,
    SourceSwitch,
    SourceTarget,
    SourceTeacher,
    SourceTokenMean,
    SourceTurns,
    SourceTwice,
    SourceTypes,
    SourceUnfrozen,
    SourceUnreached,
    SourceWorld,
    SourceZeroed,
)
from ddoctor.evidence.source_lines import SourceCall, SourceLine, SourceLoop


class Script(Section, frozen=True, kw_only=True):
    """The training script of a launch line, with the modules that it imports from its folders."""

    commands = ("doctor", "run", "attach")
    obtained_by = "ddoctor doctor -- torchrun … train.py"

    files: tuple[str, ...]
    """The files that were read, the script first."""
    lines: int = 0
    broken: tuple[SourceLine, ...] = ()
    """Where Python's parser refuses a file, the script first."""
    imports: tuple[SourceImport, ...] = ()
    calls: tuple[SourceCall, ...] = ()
    """Function by function."""
    loops: tuple[SourceLoop, ...] = ()
    settings: tuple[SourceSetting, ...] = ()
    datasets: tuple[SourceDataset, ...] = ()
    collates_on_cuda: tuple[SourceCollating, ...] = ()
    forks: tuple[SourceFork, ...] = ()
    whole_reads: tuple[SourceReading, ...] = ()
    constant_seeds: tuple[SourceSeed, ...] = ()
    over_own_keys: tuple[SourceKeys, ...] = ()
    own_branches: tuple[SourceOwnBranch, ...] = ()
    own_skips: tuple[SourceOwnSkip, ...] = ()
    own_clocks: tuple[SourceOwnSkip, ...] = ()
    own_chances: tuple[SourceOwnSkip, ...] = ()
    """Skips that random numbers decide."""
    own_catches: tuple[SourceLine, ...] = ()
    """Where the training continues after an error that one rank alone may have had."""
    read_too_early: tuple[SourceReadEarly, ...] = ()
    fixed_work: tuple[SourceFixed, ...] = ()
    gathered: tuple[SourceGathered, ...] = ()
    passes_of_one_rank: tuple[SourceLine, ...] = ()
    """Where one rank alone runs a wrapped model that needs the others."""
    reduced_losses: tuple[SourceReduced, ...] = ()
    never_synced: SourceLine | None = None
    wrong_turns: tuple[SourceTurns, ...] = ()
    """A backward pass of the training, where each of them is in ``no_sync()``."""
    half_models: tuple[SourceLine, ...] = ()
    """Where the weights of a trained model become float16."""
    unscaled_float16: SourceLine | None = None
    """Where the training computes in float16, in a script that never scales its loss."""
    stale_optimizers: tuple[SourceStale, ...] = ()
    """Where every optimizer of the script comes before every wrapping by FSDP."""
    remade_optimizers: tuple[SourceLine, ...] = ()
    """Where a training loop makes an optimizer with a state in each turn."""
    repeated_hooks: tuple[SourceLine, ...] = ()
    """Where a training loop adds a hook to a module in each turn; no line removes one."""
    zeroed_early: tuple[SourceZeroed, ...] = ()
    replaced_layers: tuple[SourceReplaced, ...] = ()
    """Where no line makes an optimizer, or gives it parameters, afterwards."""
    discarded_passes: tuple[SourceDiscarded, ...] = ()
    teachers: tuple[SourceTeacher, ...] = ()
    moving_targets: tuple[SourceTarget, ...] = ()
    other_units: tuple[SourceOtherUnit, ...] = ()
    scaled_gradients: tuple[SourceScaled, ...] = ()
    clipped_too_late: tuple[SourceLine, ...] = ()
    """Calls that clip gradients which the optimizer has taken, or that are zero."""
    clipped_in_parts: tuple[SourceLine, ...] = ()
    """Calls of torch's ``clip_grad_norm_`` for a model of FSDP1, of which a rank has a part."""
    evaluations_with_graphs: tuple[SourceEvaluation, ...] = ()
    outside_wrapper: tuple[SourceOutside, ...] = ()
    trains_alone: SourceAlone | None = None
    large_tables: tuple[SourceLine, ...] = ()
    """Embeddings of which a batch uses few rows, and whose gradients are dense."""
    never_zeroed: SourceLine | None = None
    """The step of an optimizer of torch, in a script without any line that zeroes gradients."""
    left_in_evaluation: tuple[SourceLine, ...] = ()
    """Calls of ``eval()`` of a trained model in the loops of the training, without ``train()``."""
    evaluated_in_training_mode: tuple[SourceLine, ...] = ()
    """Passes of the trained model in evaluations, in a script that never asks for that mode."""
    partial_metrics: tuple[SourcePartial, ...] = ()
    """Where nothing on the way from the loop to the report asks another rank."""
    local_counts: tuple[SourceLocalCount, ...] = ()
    evaluates_loaders: bool = False
    """Whether a loop without gradients may run over a DataLoader."""
    leaf_units: tuple[SourceLine, ...] = ()
    """Where FSDP wraps single layers of torch as units."""
    remade_loaders: tuple[SourceRemade, ...] = ()
    shared_files: tuple[SourceShared, ...] = ()
    own_rates: tuple[SourceLine, ...] = ()
    """Where a learning rate, or the steps of accumulation, follow from a batch without ranks."""
    scales_by_ranks: SourceLine | None = None
    """The first line that computes a rate or a batch with the number of ranks, or a scaled rate."""
    still_epochs: tuple[SourceLine, ...] = ()
    """Calls of ``set_epoch`` in a loop, with an attribute that nothing in the script advances."""
    own_stops: tuple[SourceLine, ...] = ()
    """Where a rank leaves the loop over epochs by what it alone has measured."""
    sorted_shares: tuple[SourceSortedShare, ...] = ()
    pairs_of_rank0: tuple[SourcePairs, ...] = ()
    own_divergences: tuple[SourceLine, ...] = ()
    """Where it ends the updates of a policy by the divergence on its own rollouts."""
    same_noise: tuple[SourceNoise, ...] = ()
    token_means: tuple[SourceTokenMean, ...] = ()
    divided_losses: tuple[SourceDivided, ...] = ()
    scaled_twice: tuple[SourceTwice, ...] = ()
    precisions: tuple[SourcePrecision, ...] = ()
    frozen_checkpoints: tuple[SourceFrozen, ...] = ()
    """Where no line lets the inputs of the checkpointed blocks need a gradient."""
    schedules_of_one_rank: tuple[SourceSchedule, ...] = ()
    told_ranks: tuple[SourceWorld, ...] = ()
    own_batches: tuple[SourceBatches, ...] = ()
    plain_samplers: tuple[SourceSampler, ...] = ()
    unreached_samplers: tuple[SourceUnreached, ...] = ()
    unused_samplers: tuple[SourceLine, ...] = ()
    """Where a DistributedSampler is made that no line gives to anything."""
    mixed_layers: tuple[SourceMixture, ...] = ()
    mixed_types: tuple[SourceTypes, ...] = ()
    own_averaging: SourceAveraging | None = None
    summed_gradients: SourceLine | None = None
    """Where gradients of the ranks are added up that no line divides by their number."""
    random_splits: tuple[SourceRandomSplit, ...] = ()
    numbered_texts: tuple[SourceLine, ...] = ()
    """Where texts get numbers in the order of a set."""
    past_wrapper: tuple[SourceLine, ...] = ()
    """Forward passes of the training that run the model inside DDP, and not DDP."""
    frozen_in_vain: tuple[SourceLine, ...] = ()
    """Assignments to ``requires_grad`` of a module, which only its parameters have."""
    fixed_padding: tuple[SourceLine, ...] = ()
    """Where samples are padded to a fixed length, whatever the longest of their batch is."""
    added_layers: tuple[SourceLine, ...] = ()
    """Calls that give a model layers after DDP was made of it."""
    unfrozen: tuple[SourceUnfrozen, ...] = ()
    unused_layers: tuple[SourceLine, ...] = ()
    """Where the script's own models make a layer that takes no part in the loss."""
    switched_layers: tuple[SourceSwitch, ...] = ()
    own_layers: tuple[SourceLayer, ...] = ()
    """All layers of its models; empty: other packages may bring some."""
    own_sizes: tuple[SourceSize, ...] = ()
    restored: tuple[SourceLine, ...] = ()
    """Calls of ``torch.load`` whose result becomes the state of a model or an optimizer."""
    kept_values: tuple[SourceLine, ...] = ()
    """Statements of a training loop that keep something of each step, but for numbers."""
    kept_losses: tuple[SourceLine, ...] = ()
    """Statements of a training loop that store a loss with its graph beyond the step."""
    set_fields: frozenset[str] = frozenset()
    """Attributes of objects that a line sets, and not their own methods: ``args.distributed``."""
    splits: tuple[SourceLine, ...] = ()
    """Lines that use the rank or the number of ranks in a way that may select data."""
    names_device: SourceLine | None = None
    """The first line with a word for a local rank, or for one of several GPUs."""
    gives_local_rank: SourceLine | None = None
    """The first line that may tell a process its local rank: a variable, a function, or an
    assignment to ``local_rank`` of an object."""
    local_of_torchrun: SourceLine | None = None
    """The first line with the text LOCAL_RANK, the variable that torchrun sets."""
    counts_gpus: SourceLine | None = None
    """The first line that asks for the number of GPUs, or a function for the local rank."""
    local_of_scheduler: SourceLine | None = None
    """The first line with a variable by which Slurm or MPI tells a process its local rank."""
    names_scheduler: SourceLine | None = None
    """The first line with a variable of Slurm or MPI, or with a package that reads them."""
    names_set_epoch: SourceLine | None = None
    """The first line with the word ``set_epoch``, as a name or a text."""
    names_end: SourceLine | None = None
    """The first line with the word ``destroy_process_group``."""
    names_pooler: SourceLine | None = None
    """The first line with a word for the pooler of an encoder such as BERT."""
    takes_hidden_states: SourceLine | None = None
    """The first line with the word ``last_hidden_state``."""
    fills_in: SourceLine | None = None
    """The first line that gives a model of the meta device memory without values, ``to_empty``."""
    loads_on_one_rank: SourceLine | None = None
    """The first line by which rank 0 alone loads a model or its state."""
    in_parts: SourceLine | None = None
    """The first line that lets DeepSpeed make a model in parts, as ``HfDeepSpeedConfig``."""
    holds_back: SourceLine | None = None
    """The first line that holds back DDP's reduction, such as ``model.no_sync()``."""
    copies_ahead: SourceLine | None = None
    """The first copy to a device that does not wait for its end, ``non_blocking=True``."""
    accumulates: SourceLine | None = None
    """The first line with a name for a number of micro-steps, such as ``args.accumulation``."""
    names_deepspeed_keys: SourceLine | None = None
    """The first line that reads or writes a batch or an accumulation of DeepSpeed's own config."""
    names_pinning: SourceLine | None = None
    """The first line with the word ``pin_memory`` that is not an option of a call."""
    trains_less: SourceLine | None = None
    """The first line with a word for weights that are frozen, quantized or offloaded."""

    def of(self, *names: str) -> tuple[SourceCall, ...]:
        """The calls of these names."""
        return tuple(one for one in self.calls if one.name in names)
