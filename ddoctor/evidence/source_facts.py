"""What the readers of a source find in it: one class for each kind of fact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ddoctor.evidence.section import Part
from ddoctor.evidence.source_lines import SourceLine, Within

PrecisionPlace = Literal["accelerator", "step", "forward"]
"""What a precision is given to: ``Accelerator``, or an autocast of the script itself.

``step``: around the call of a prepared model; ``forward``: in the model's own forward pass.
"""


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


class SourceOwnSkip(Part, frozen=True, kw_only=True):
    """Where a rank leaves a training loop, or a step of it, by its own batch."""

    at: SourceLine
    test: str
    """The source of the test."""
    ends: bool = False
    """Whether it leaves the loop."""


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


class SourceSortedShare(Part, frozen=True, kw_only=True):
    """A part in a row that a rank takes of data sorted by length."""

    at: SourceLine
    sorts: SourceLine


class SourceReadEarly(Part, frozen=True, kw_only=True):
    """A file that one rank saves, and that all ranks read without waiting for it."""

    at: SourceLine
    """What reads it."""
    save: SourceLine


class SourcePairs(Part, frozen=True, kw_only=True):
    """A loss of a rank's features with those of all ranks, and its targets without the rank."""

    at: SourceLine
    targets: SourceLine


class SourceGathered(Part, frozen=True, kw_only=True):
    """Features of all ranks that a loss compares, and that carry no gradient."""

    at: SourceLine
    """What gathers them."""
    similar: SourceLine
    """What multiplies them for the loss."""


class SourceFixed(Part, frozen=True, kw_only=True):
    """What a forward pass computes in each step from a buffer that nothing changes."""

    at: SourceLine
    buffer: str
    """As ``self.name``."""


class SourceTurns(Part, frozen=True, kw_only=True):
    """Accumulation whose exchange of gradients is in another turn than the optimizer's step."""

    at: SourceLine
    """What holds the gradients back."""
    synced: str
    """The test for a turn that exchanges them."""
    step: SourceLine
    test: str
    """The test for a turn with a step."""


class SourceReduced(Part, frozen=True, kw_only=True):
    """A loss that is averaged over the ranks, by a sum and a division, before its backward pass."""

    at: SourceLine
    """What sums it."""
    divides: SourceLine


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


class SourceTarget(Part, frozen=True, kw_only=True):
    """A moving average of a model that a training step calls with gradients."""

    at: SourceLine
    """Where it is called."""
    averaged: SourceLine
    """Where its parameters take those of the trained model."""


class SourceTeacher(Part, frozen=True, kw_only=True):
    """A model that no optimizer has, and through which a backward pass goes all the same."""

    at: SourceLine
    """Where a training step calls it, with gradients."""
    mode: SourceLine
    """Where its mode is set, which keeps none from it."""


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


class SourceOutside(Part, frozen=True, kw_only=True):
    """A module whose parameters an optimizer has besides those of DDP, which does not know them."""

    at: SourceLine
    """What makes it."""
    name: str
    """The variable that holds it."""
    optimizer: SourceLine


class SourceImport(Part, frozen=True, kw_only=True):
    """A framework that the source imports."""

    framework: str
    """Such as ``accelerate``, ``Trainer`` or ``Lightning``."""
    at: SourceLine
