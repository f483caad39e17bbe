"""What the source of a training script says: its own files, parsed and never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ddoctor.evidence.section import Part, Section

Within = Literal[
    "epoch",
    "training",
    "loop",
    "one-rank",
    "other-ranks",
    "some-ranks",
    "main-first",
    "condition",
    "no-grad",
    "no-sync",
]
"""What contains a statement.

``training``: the loop that calls backward and steps an optimizer; ``epoch``: a loop around that;
``one-rank``: what only rank 0 or the main process runs; ``other-ranks``: what it does not run;
``some-ranks``: a test of the rank of another kind; ``main-first``: what the main process runs
before the others, as in ``main_process_first()``.
"""
PrecisionPlace = Literal["accelerator", "step", "forward"]
"""What a precision is given to: ``Accelerator``, or an autocast of the script itself.

``step``: around the call of a prepared model; ``forward``: in the model's own forward pass.
"""
UNKNOWN = "?"
"""An origin that the source does not show, such as an argument of a function."""


class SourceLine(Part, frozen=True, kw_only=True):
    """A line of the source."""

    file: str
    """Its path from the folder of the script."""
    line: int
    text: str
    """The statement, in one line."""
    function: str = ""
    """The function or method that contains it; empty: the top level of the file."""

    @property
    def place(self) -> str:
        """File and line, such as ``train.py:120``."""
        return f"{self.file}:{self.line}"


SAVES: Mapping[str, tuple[str, int]] = {
    "torch.save": ("f", 1),
    "safetensors.torch.save_file": ("filename", 1),
    ".save_pretrained": ("save_directory", 0),
}
"""Calls that write a file or a folder, and the keyword and position of its name.

``save_pretrained`` writes on each rank unless it gets ``is_main_process=False``
(transformers/modeling_utils.py).
"""


class SourceCall(Part, frozen=True, kw_only=True):
    """A call that matters to a distributed run."""

    name: str
    """The full name, such as ``torch.distributed.barrier``; ``.step`` for a method of an object."""
    at: SourceLine
    arguments: tuple[str, ...] = ()
    """The source of the positional arguments."""
    keywords: Mapping[str, str] = {}
    """The source of the keyword arguments; of ``**options``, those that its dictionary gives."""
    spread: Mapping[str, tuple[str, ...]] = {}
    """Which of them a dictionary gives, by its variable."""
    origins: Mapping[str, tuple[str, ...]] = {}
    """What makes the value of an argument, by its keyword or its position.

    Names of the called functions, ``os.environ[RANK]`` for a variable, literals, or ``UNKNOWN``.
    """
    values: Mapping[str, str] = {}
    """The sources of what an argument, a variable, is assigned from, and of the variables in it:
    ``per_epoch * epochs; per_epoch = len(loader)``."""
    on: str = ""
    """The object of a method, such as ``optimizer``."""
    made_by: tuple[str, ...] = ()
    """The origins of that object."""
    assigned: str = ""
    """The variable that gets the result."""
    within: tuple[Within, ...] = ()
    """The loops and branches that contain it, the innermost last: those of its function, and those
    around the only call of that function."""
    test: str = ""
    """The condition of the innermost branch around it that does not test a rank."""
    unless: str = ""
    """The condition on which the step, or the function, is left right before it."""
    branch: SourceLine | None = None
    """The innermost branch around it that tests a rank."""
    always: bool = False
    """Whether every run of the script reaches it, unless it ends before."""
    for_some_ranks: bool = False
    """Whether a caller of its function, or a decorator, tests the rank."""
    loop: SourceLine | None = None
    """The innermost loop around it in its function."""
    collective: SourceLine | None = None
    """The collective that it is, or that a function of the user always calls."""
    of_script: bool = False
    """Whether it calls a function of the script, such as its own method ``backward``."""

    @property
    def step(self) -> tuple[Within, ...]:
        """What contains it within the training loop; empty also if no such loop does."""
        loops = [at for at, one in enumerate(self.within) if one == "training"]
        return self.within[loops[-1] + 1 :] if loops else ()

    @property
    def in_each_step(self) -> bool:
        """Whether every step of the training calls it."""
        return "training" in self.within and not self.step

    @property
    def on_all_ranks(self) -> bool:
        """Whether nothing around it or its function tests the rank."""
        ranks = {"one-rank", "other-ranks", "some-ranks", "main-first"}
        return not self.for_some_ranks and not ranks & set(self.within)

    def argument(self, keyword: str, position: int | None = None) -> str | None:
        """The source of an argument; None: it is not given."""
        if keyword in self.keywords:
            return self.keywords[keyword]
        given = position is not None and position < len(self.arguments)
        return self.arguments[position] if given and position is not None else None

    def held(self, keyword: str, position: int | None = None) -> str:
        """The source of what the variable of an argument holds; empty: no line shows it."""
        return self.values.get(keyword, self.values.get(str(position), ""))

    def origin(self, keyword: str, position: int | None = None) -> tuple[str, ...]:
        """The origins of an argument; empty: it is not given."""
        return self.origins.get(keyword, self.origins.get(str(position), ()))


class SourceLoop(Part, frozen=True, kw_only=True):
    """A training loop, or a loop over epochs around one."""

    at: SourceLine
    kind: Literal["training", "epoch"]
    exhausts: bool = False
    """Whether it ends with its items alone: no line counts steps, breaks, or asks other ranks."""


class SourceSetting(Part, frozen=True, kw_only=True):
    """An assignment to a setting of torch or of a model, or to an environment variable."""

    name: str
    """Such as ``torch.backends.cudnn.benchmark``, ``os.environ[CUDA_VISIBLE_DEVICES]`` or
    ``.use_cache``, an attribute."""
    value: str
    at: SourceLine
    within: tuple[Within, ...] = ()
    after: SourceLine | None = None
    """Of CUDA_VISIBLE_DEVICES: a line that surely runs before, and uses CUDA."""
    option: str = ""
    """The option of the run that it gets, with those of its sections; empty: it is none."""


class SourceDataset(Part, frozen=True, kw_only=True):
    """A class of the user that is a dataset."""

    name: str
    at: SourceLine
    iterable: bool = False
    """Whether it is a stream: an IterableDataset."""
    shards: bool = False
    """Whether a word of it hints that it gives each rank or worker a different part."""
    shards_workers: bool = False
    """Whether it asks for the DataLoader worker that it runs in."""
    shards_ranks: bool = False
    """Whether a word of it hints that it knows its rank."""
    random: bool = False
    """Whether it draws random numbers."""
    plays: bool = False
    """Whether a stream gets its items from a call of what it was given, such as an environment or a
    buffer of experiences."""
    fixed: SourceLine | None = None
    """Where it makes the generator of all its random numbers from one seed for every worker."""
    alike: bool = False
    """Whether the workers of one rank draw alike, by a seed that the rank may change."""
    dealt: SourceLine | None = None
    """Where a stream takes every Nth file of a list, by the rank, and reads all that they hold."""
    endless: bool = False
    """Whether it has a loop without an end, ``while True``."""
    generator: SourceLine | None = None
    """Where it makes a random generator, once, that every item then draws from."""
    cuda: SourceLine | None = None
    """Where an item is put on the GPU."""


class SourceCollating(Part, frozen=True, kw_only=True):
    """A DataLoader whose ``collate_fn`` puts batches on the GPU."""

    loader: SourceLine
    at: SourceLine


class SourceFork(Part, frozen=True, kw_only=True):
    """A process that is forked after its parent has used CUDA."""

    at: SourceLine
    before: SourceLine
    """What has used CUDA."""
    child: SourceLine | None = None
    """What surely uses it in the child; None: the source shows nothing."""


class SourceReading(Part, frozen=True, kw_only=True):
    """A loop in which every rank reads a DataLoader as the script has made it; no training."""

    at: SourceLine
    loader: SourceLine


class SourceSeed(Part, frozen=True, kw_only=True):
    """A function that seeds random numbers alike on every rank: with a constant, or a worker."""

    function: str
    """Its full name."""
    at: SourceLine
    by_worker: bool = False
    """Whether its argument, the number of a worker, is part of the seed."""


class SourceKeys(Part, frozen=True, kw_only=True):
    """A collective in a loop over a table whose keys come from the data of each rank."""

    at: SourceLine
    key: SourceLine
    """Where a key is added."""


class SourceOwnBranch(Part, frozen=True, kw_only=True):
    """A call that leads to a collective, in a branch that a rank takes by its own batch."""

    at: SourceLine
    test: str
    """The source of the test."""


class SourcePartial(Part, frozen=True, kw_only=True):
    """An evaluation of one rank's part of the data, and what reports its result."""

    loop: SourceLine
    loader: SourceLine
    report: SourceLine


class SourceUnfrozen(Part, frozen=True, kw_only=True):
    """What lets parameters train that were frozen when DDP was made."""

    at: SourceLine
    wrapper: SourceLine


class SourceLocalCount(Part, frozen=True, kw_only=True):
    """A sum of all ranks that is divided by the count of one of them."""

    at: SourceLine
    reduced: SourceLine
    """What adds the sum up."""


class SourceRemade(Part, frozen=True, kw_only=True):
    """A DataLoader that a function makes, which is called again in each epoch."""

    loader: SourceLine
    at: SourceLine
    """The call in the loop over epochs."""


class SourceShared(Part, frozen=True, kw_only=True):
    """A call that saves to a file or folder whose path is surely the same on all ranks."""

    at: SourceLine
    moved: SourceLine | None = None
    """What then gives the file another name."""


class SourceStale(Part, frozen=True, kw_only=True):
    """An optimizer that is made of a model before FSDP replaces its parameters."""

    at: SourceLine
    wrap: SourceLine
    """What replaces them."""


class SourceNoise(Part, frozen=True, kw_only=True):
    """What draws random numbers in each step, alike on all ranks."""

    at: SourceLine
    seed: SourceLine
    """What gives all ranks the same seed."""


class SourcePrecision(Part, frozen=True, kw_only=True):
    """A call that sets the precision of a model that accelerate or DeepSpeed runs."""

    at: SourceLine
    values: tuple[str, ...]
    """Its constants, such as ``torch.float16``, ``bf16`` or ``args.precision``."""
    flag: str = ""
    """The argument of the script that chooses the first of two values, as ``args.fp16``."""
    place: PrecisionPlace = "accelerator"


class SourceTokenMean(Part, frozen=True, kw_only=True):
    """A mean over the tokens of a micro-batch, divided by the number of micro-steps."""

    at: SourceLine
    back: SourceLine
    """Where its gradients are computed."""
    alike: str = ""
    """What the source says on it: that all tokens weigh the same; empty: nothing."""


class SourceDivided(Part, frozen=True, kw_only=True):
    """A loss that a number of micro-steps divides."""

    at: SourceLine
    back: SourceLine
    """The backward that gets it."""


class SourceTwice(Part, frozen=True, kw_only=True):
    """An optimizer with a rate that the number of ranks multiplies twice."""

    at: SourceLine
    first: SourceLine
    second: SourceLine


class SourceFrozen(Part, frozen=True, kw_only=True):
    """Re-entrant checkpoints of a frozen model with adapters."""

    at: SourceLine
    """Where they are switched on."""
    frozen: SourceLine


class SourceSchedule(Part, frozen=True, kw_only=True):
    """A schedule of the learning rate that accelerate prepares, over the batches of one rank."""

    at: SourceLine
    name: str
    """The variable that holds it; empty: unknown."""
    counts: SourceLine
    """Where the batches of one rank are counted."""


class SourceSize(Part, frozen=True, kw_only=True):
    """The least number of parameters of a model of the script's own."""

    at: SourceLine
    """Where it is made."""
    name: str
    """Its class."""
    terms: tuple[str, ...]
    """Products of constants and options, such as ``60 * model.width * (4 * model.width)``."""
    defaults: Mapping[str, str] = {}
    """What options are in a class of the script, where nothing else sets them."""
    halves: bool = False
    """Whether a line may turn its weights to 16 bits."""


class SourceWorld(Part, frozen=True, kw_only=True):
    """A number of ranks that the script takes with the rank, not from the process group."""

    at: SourceLine
    option: str = ""
    """The option of the run that it is, with those of its sections; empty: a constant."""
    given: str = ""
    """The constant, or the default of the option in a class."""


class SourceAveraging(Part, frozen=True, kw_only=True):
    """A model whose gradients the script averages itself, with other weights on each rank."""

    model: SourceLine
    average: SourceLine
    seed: SourceLine | None = None
    """What seeds by the rank; None: nothing seeds at all."""


class SourceRandomSplit(Part, frozen=True, kw_only=True):
    """A random split of a dataset that differs between the ranks."""

    at: SourceLine
    argument: str
    """The argument that would make it the same on all of them."""
    seed: SourceLine | None = None
    """What seeds by the rank; None: nothing seeds at all."""


class SourceMixture(Part, frozen=True, kw_only=True):
    """Layers of a model with frozen and trained weights."""

    at: SourceLine
    """What adds or selects the trained ones."""
    trained: str = ""
    """The class of the script that is added to the layers; empty: unknown."""


class SourceTypes(Part, frozen=True, kw_only=True):
    """A part of a model in 16 bits that is made float32, inside a unit of FSDP1."""

    at: SourceLine
    loaded: SourceLine
    """What loads the model."""
    model: str
    """The variable that holds it."""


class SourceTest(Part, frozen=True, kw_only=True):
    """A comparison on which a branch of the source depends."""

    option: str = ""
    """The option of the script that is compared, with its sections; empty: the source decides."""
    given: str = ""
    """The value that the source gives; of an option, its default in a class; empty: none."""
    operator: Literal["true", "==", "!=", ">", ">=", "<", "<="] = "true"
    """``true``: the value itself is tested."""
    value: str = ""
    negated: bool = False


class SourceSwitch(Part, frozen=True, kw_only=True):
    """A layer of the script's own model that takes part in the loss only in some branches."""

    at: SourceLine
    uses: tuple[tuple[SourceTest, ...], ...]
    """What all must hold at each place that uses the layer."""


class SourceLayer(Part, frozen=True, kw_only=True):
    """A class of the script that is a layer or a model, or a layer of torch that it makes."""

    name: str
    at: SourceLine
    repeated: bool = False
    """Whether a loop or a comprehension makes several of it."""
    of_torch: bool = False


class SourceSampler(Part, frozen=True, kw_only=True):
    """A DataLoader of the training whose sampler knows nothing of other ranks."""

    loader: SourceLine
    at: SourceLine
    """What makes the sampler."""


class SourceUnreached(Part, frozen=True, kw_only=True):
    """A DataLoader whose sampler, of the script's own, has a ``set_epoch`` that no line reaches."""

    loader: SourceLine
    at: SourceLine
    """The class of the sampler."""
    calls: SourceLine | None = None
    """A line that calls the ``set_epoch`` of another sampler; None: there is none."""


class SourceBatches(Part, frozen=True, kw_only=True):
    """A training loop over a generator of the script that knows no rank and no other random."""

    loop: SourceLine
    at: SourceLine
    """The generator."""


class SourceZeroed(Part, frozen=True, kw_only=True):
    """Gradients that are zeroed between the backward pass and the step of the optimizer."""

    at: SourceLine
    step: SourceLine


class SourceReplaced(Part, frozen=True, kw_only=True):
    """A layer that a model gets after its optimizer was made."""

    at: SourceLine
    optimizer: SourceLine


class SourceDiscarded(Part, frozen=True, kw_only=True):
    """A backward pass through a model whose gradients its optimizer zeroes."""

    made: SourceLine
    """Where that model makes what another one learns from."""
    at: SourceLine
    """Where the other model gets it."""


class SourceOtherUnit(Part, frozen=True, kw_only=True):
    """A schedule of the learning rate that counts epochs and moves in each step, or vice versa."""

    made: SourceLine
    at: SourceLine
    """What moves it."""
    counts: Literal["epochs", "steps"]


class SourceScaled(Part, frozen=True, kw_only=True):
    """What clips or applies gradients while the factor of a GradScaler is in them."""

    at: SourceLine
    scale: SourceLine
    """What has multiplied the loss."""
    applies: bool = False
    """Whether it is the step of the optimizer."""


class SourceEvaluation(Part, frozen=True, kw_only=True):
    """A pass of a model in evaluation mode that builds the graph of its gradients."""

    at: SourceLine
    keeps: SourceLine | None = None
    """What keeps a result of each batch with its graph; None: nothing is seen."""


class SourceAlone(Part, frozen=True, kw_only=True):
    """A training loop of ranks that join each other, and exchange no gradients and no weights."""

    at: SourceLine
    joins: SourceLine


class SourceImport(Part, frozen=True, kw_only=True):
    """A framework that the source imports."""

    framework: str
    """Such as ``accelerate``, ``Trainer`` or ``Lightning``."""
    at: SourceLine


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
    other_units: tuple[SourceOtherUnit, ...] = ()
    scaled_gradients: tuple[SourceScaled, ...] = ()
    clipped_too_late: tuple[SourceLine, ...] = ()
    """Calls that clip gradients which the optimizer has taken, or that are zero."""
    clipped_in_parts: tuple[SourceLine, ...] = ()
    """Calls of torch's ``clip_grad_norm_`` for a model of FSDP1, of which a rank has a part."""
    evaluations_with_graphs: tuple[SourceEvaluation, ...] = ()
    trains_alone: SourceAlone | None = None
    large_tables: tuple[SourceLine, ...] = ()
    """Embeddings of which a batch uses few rows, and whose gradients are dense."""
    never_zeroed: SourceLine | None = None
    """The step of an optimizer of torch, in a script without any line that zeroes gradients."""
    left_in_evaluation: tuple[SourceLine, ...] = ()
    """Calls of ``eval()`` of a trained model in the loops of the training, without ``train()``."""
    partial_metrics: tuple[SourcePartial, ...] = ()
    """Where nothing on the way from the loop to the report asks another rank."""
    local_counts: tuple[SourceLocalCount, ...] = ()
    evaluates_loaders: bool = False
    """Whether a loop without gradients may run over a DataLoader."""
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
    mixed_layers: tuple[SourceMixture, ...] = ()
    mixed_types: tuple[SourceTypes, ...] = ()
    own_averaging: SourceAveraging | None = None
    random_splits: tuple[SourceRandomSplit, ...] = ()
    past_wrapper: tuple[SourceLine, ...] = ()
    """Forward passes of the training that run the model inside DDP, and not DDP."""
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
