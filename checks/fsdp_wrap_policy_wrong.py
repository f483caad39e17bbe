"""FSDP wraps the model as one unit or as too many, so it gathers too much at once or too little.

FSDP gathers the parameters of one unit, computes with them and frees them; meanwhile it gathers the
next unit. If the model is the only unit, every rank holds all parameters during the whole step, and
no computation overlaps the all-gather. Optimizer states stay sharded. The reason is a missing wrap
policy, or one that names a class that the model does not have. If each linear layer is a unit, each
has separate collectives, and the step takes as long as all of their latencies.

Symptoms: peak GPU memory as without FSDP, and all-gathers without overlap in the profiler trace.

To fix it, wrap each repeated block: ``ModuleWrapPolicy``, ``fully_shard(block)``, or
``fsdp_transformer_layer_cls_to_wrap`` in accelerate.
"""

# Above 150 lines: a launch, a source, a recorded model, a live run and a failure show different
# mistakes.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddoctor.analysis import endings, live_cost
from ddoctor.analysis.describe import MIB
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.named_models import OF_MODELS
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.live import LiveLook
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceLayer
from ddoctor.evidence.source_lines import SourceCall, SourceLine
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import TrainingRun
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity

EXPLAINS = ("communication-bound-step", "scaling-efficiency-low")

# torch's size_based_auto_wrap_policy makes a separate unit from this size (min_num_params).
LARGE = 100_000_000
# Published detectors report a slowdown from this share.
NOTABLE_SHARE = 0.10

# torch's DDP sends a first bucket of this size early (_DEFAULT_FIRST_BUCKET_BYTES): less is mostly
# latency.
SMALL = MIB
MANY = 2
"""Times of the blocks, and the rest of the model, that are units."""
FEWEST = 2
"""Blocks that repeat."""

CLASSES = "fsdp.transformer_layer_cls_to_wrap"
# accelerate/utils/dataclasses.py, set_auto_wrap_policy; peft's does not name the class.
REFUSED = re.compile(
    r"Could not find the transformer layer class (?:to wrap(?: in the model)?|(\S+) in the model)"
)


def in_a_launch(launch: Launch) -> Iterator[Finding]:
    """accelerate takes an empty name for a class that the model does not have."""
    wrapped = _named(launch)
    if wrapped is not None and not wrapped.value.strip():
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"fsdp_transformer_layer_cls_to_wrap is empty ({wrapped.at}), which accelerate "
            "takes for the name of a class",
            evidence=(Observation(name="classes to wrap", value="none", source=wrapped.at),),
            fixes=(
                Fix(
                    summary="name the class of the repeated block, or leave the key out: then "
                    "accelerate takes the model's own choice (_no_split_modules)",
                    paste="fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer  # of your model",
                    language="text",
                ),
            ),
        )


def _named(launch: Launch) -> Setting | None:
    """The classes that accelerate's file names for its policy; None: it wraps otherwise."""
    policy = launch.get("fsdp.auto_wrap_policy")
    by_blocks = policy is not None and policy.value == "TRANSFORMER_BASED_WRAP"
    return launch.get(CLASSES) if by_blocks else None


FAMILIES = {
    "mixtral": "Mixtral",
    "mistral": "Mistral",
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gpt2": "GPT2",
    "gpt-neox": "GPTNeoX",
    "pythia": "GPTNeoX",
    "gemma": "Gemma",
    "falcon": "Falcon",
    "bloom": "Bloom",
    "phi": "Phi",
}
"""How transformers begins the names of classes, by what the names of models contain."""
OF_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]*\d[\w.]*[bB]\b[\w.-]*")
OF_MODEL = ("model", "model_path", "model_name", "model_name_or_path", "model_id", "base_model")


def of_another_model(launch: Launch, script: Script | None) -> Iterator[Finding]:
    """accelerate's file names a block of another family of models, and accelerate refuses that."""
    wrapped = _named(launch)
    if wrapped is None:
        return
    block = wrapped.value.strip()
    other = _family(block)
    models = [*_models(launch, script)]
    if other and _is_foreign(other, models):
        model, at = models[0]
        yield Finding(
            title="The wrap policy names a class that the model does not have",
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"the model is {model} ({at}), and FSDP is to wrap {block} "
            f"({wrapped.at}), a class of {other} models: accelerate raises ValueError as it "
            "prepares the model",
            evidence=(Observation(name="class to wrap", value=block, source=wrapped.at),),
            fixes=(
                Fix(
                    summary="leave the key out: accelerate then takes the model's own choice",
                    paste="# fsdp_transformer_layer_cls_to_wrap",
                    language="text",
                ),
            ),
        )


WITHIN = {"Transformer": {"TransformerEncoderLayer", "TransformerDecoderLayer"}}
"""Layers of torch that others of it contain."""


def of_no_layer(launch: Launch, script: Script) -> Iterator[Finding]:
    """accelerate's file names a block that is no class of the script's own models."""
    wrapped = _named(launch)
    if wrapped is None or not script.own_layers:
        return
    known = _layers(script)
    blocks = filter(None, (one.strip() for one in wrapped.value.split(",")))
    missing = next((one for one in blocks if one not in known), None)
    own = _block(script)
    if missing is not None and own is not None:
        yield Finding(
            title="The wrap policy names a class that the model does not have",
            severity=Severity.ERROR,
            confidence=Confidence.LIKELY,
            because=f"FSDP is to wrap {missing} ({wrapped.at}), and no layer of the script has "
            f"that name: its {'repeated block' if own.repeated else 'model'} is {shown(own.at)}. "
            "accelerate raises ValueError as it prepares the model",
            evidence=(Observation(name="class to wrap", value=missing, source=wrapped.at),),
            fixes=(
                Fix(
                    summary="name the repeated block of the model",
                    paste="fsdp_transformer_layer_cls_to_wrap: "
                    f"{own.name if own.repeated else 'Block'}",
                    language="text",
                ),
            ),
        )


def of_no_layer_in_the_source(script: Script) -> Iterator[Finding]:
    """A policy of the script names a block that its own models do not have."""
    known, own = _layers(script), _block(script)
    for one in script.of("torch.distributed.fsdp.FullyShardedDataParallel") if own else ():
        blocks = _wrapped(one)
        if own is not None and blocks and not known.intersection(blocks):
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} wraps {blocks[0]}, and the script makes no such layer: "
                f"FSDP makes one unit of the model. Its "
                f"{'repeated block' if own.repeated else 'model'} is {shown(own.at)}",
                evidence=(Observation(name="class to wrap", value=blocks[0], source=one.at.place),),
                fixes=(
                    Fix.python(
                        summary="name the repeated block",
                        paste=f"transformer_layer_cls={{{own.name if own.repeated else 'Block'}}}",
                    ),
                ),
            )
            return


def _layers(script: Script) -> set[str]:
    """The names of all layers that its models have; empty: unknown."""
    names = {one.name for one in script.own_layers}
    return names.union(*(WITHIN.get(name, ()) for name in names))


def _block(script: Script) -> SourceLayer | None:
    """The repeated block that it defines, else a model; None: it defines none."""
    own = [one for one in script.own_layers if not one.of_torch]
    return next((one for one in own if one.repeated), own[0] if own else None)


def _wrapped(call: SourceCall) -> list[str]:
    """The classes that the policy of a call names."""
    texts = (*call.keywords.values(), *call.values.values())
    named = next(filter(None, map(BLOCKS.search, texts)), None)
    return re.findall(r"\w+(?=\s*(?:,|$))", named[1]) if named is not None else []


def of_another_model_in_the_source(launch: Launch, script: Script) -> Iterator[Finding]:
    """torch finds no such block in the model, and wraps it as one unit."""
    models = [*_models(launch, script)]
    for one in script.of("torch.distributed.fsdp.FullyShardedDataParallel"):
        blocks = _wrapped(one)
        others = [_family(block) for block in blocks]
        if blocks and all(other and _is_foreign(other, models) for other in others):
            model, at = models[0]
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"the model is {model} ({at}), and {shown(one.at)} wraps {blocks[0]}, a "
                f"class of {others[0]} models: it has no such block, so FSDP makes one unit of it",
                evidence=(Observation(name="class to wrap", value=blocks[0], source=one.at.place),),
                fixes=(
                    Fix.python(
                        summary="name the blocks of the model that is loaded",
                        paste="blocks = {type(one) for one in model.modules()\n"
                        "          if type(one).__name__ in model._no_split_modules}\n"
                        "policy = ModuleWrapPolicy(blocks)",
                    ),
                ),
            )
            return


BLOCKS = re.compile(r"(?:transformer_layer_cls=|ModuleWrapPolicy\()\s*[{(\[]([\w., ]+)[})\]]")
LITERAL = re.compile(r"(['\"])([\w./-]+)\1")


def _models(launch: Launch, script: Script | None) -> Iterator[tuple[str, str]]:
    """The names of the models that are loaded, each with its place: an option's, or literals."""
    named = launch.get(*(f"arg.{name}" for name in OF_MODEL)) or next(
        # The name of a model by an option of any name: `--base Qwen/Qwen2.5-7B`.
        (one for one in launch.settings if one.name[:4] == "arg." and OF_HUB.fullmatch(one.value)),
        None,
    )
    if named is not None:
        yield named.value, named.at
    for one in script.calls if script is not None else ():
        made = one.origin("0", 0) or one.origin("pretrained_model_name_or_path")
        literals = [found[2] for text in made if (found := LITERAL.fullmatch(text))]
        if OF_MODELS.search(one.name):
            yield from ((text, one.at.place) for text in literals)


def _is_foreign(family: str, models: Sequence[tuple[str, str]]) -> bool:
    """Whether the families of all models are known, and this is none of them."""
    known = [_families(model) for model, _ in models]
    return bool(known) and all(known) and not any(family in one for one in known)


def _families(model: str) -> set[str]:
    return {family for text, family in FAMILIES.items() if text in model.lower()}


def _family(block: str) -> str:
    """The family of models that has a class; empty: unknown."""
    found = (one for one in FAMILIES.values() if re.match(rf"{one}(?=[A-Z])(?!\d)", block))
    return next(found, "")


def in_the_source(script: Script) -> Iterator[Finding]:
    """A policy that names the class of the whole model."""
    for one in script.of("torch.distributed.fsdp.FullyShardedDataParallel"):
        texts = (*one.keywords.values(), *one.values.values())
        found = next(filter(None, map(WHOLE.search, texts)), None)
        if found is not None:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=f"{shown(one.at)} wraps {found[1]}, which is the whole model and no block: "
                "every rank gathers all of its parameters at once",
                fixes=(
                    Fix.python(
                        summary="name the repeated block",
                        paste="transformer_layer_cls={LlamaDecoderLayer}  # of your model",
                    ),
                ),
            )
            return


WHOLE = re.compile(r"transformer_layer_cls=[{(\[]\s*(\w+(?:Model|ForCausalLM|LMHeadModel))\b")


def one_unit(wrapping: Wrapping, steps: Steps | None, run: TrainingRun | None) -> Iterator[Finding]:
    share = steps.share("transfer") if steps is not None else 0.0
    for models in wrapping.by_name(lambda one: one.kind.startswith("fsdp")):
        model = models[0]
        if len(models) < 2 or any(one.units != 1 for one in models) or model.blocks in (0, 1):
            continue
        large = model.parameters >= LARGE
        if not large and not model.blocks:
            continue
        millions = f"{model.parameters / 1e6:,.0f} million"
        number = millions if model.parameters >= 1e7 else f"{model.parameters:,}"
        costs = f"; the transfer takes {share:.0%} of the step" if share >= NOTABLE_SHARE else ""
        blocks = f", although it has {model.blocks} {model.block}s" if model.blocks else ""
        yield Finding(
            severity=Severity.WARNING if large or costs else Severity.NOTE,
            confidence=Confidence.CERTAIN if model.blocks else Confidence.LIKELY,
            because=(
                f"FSDP wraps {model.name} as one unit{blocks}: every rank gathers all {number} "
                f"parameters at once{costs}"
            ),
            evidence=(
                Observation(
                    name="FSDP units", value=1, expected=1 + model.blocks if model.blocks else None
                ),
                Observation(
                    name="parameters gathered at once",
                    value=round(model.parameter_bytes / MIB, 1),
                    unit="MiB",
                ),
            ),
            cost=Cost(value=round(share, 3), unit="share of step") if share else None,
            fixes=tuple(_fixes(model, run)),
        )


def small_units(wrapping: Wrapping, steps: Steps) -> Iterator[Finding]:
    """Each layer within the blocks is a unit: its collectives take the time of larger ones."""
    share = steps.share("transfer")
    for models in wrapping.by_name(lambda one: one.kind.startswith("fsdp")):
        model = models[0]
        few = 1 + (model.blocks or 0)
        saved = share * (1 - few / model.units) if model.units else 0.0
        small = model.parameter_bytes < SMALL * model.units
        if few < 1 + FEWEST or model.units < MANY * few or not small or saved < live_cost.TOLD:
            continue
        yield Finding(
            title="FSDP gathers layers one by one, each with separate collectives",
            severity=live_cost.severity(saved),
            confidence=Confidence.LIKELY,
            because=(
                f"FSDP wraps {model.name} as {model.units} units, although it has {model.blocks} "
                f"{model.block}s: each unit has {model.parameter_bytes / model.units / 1024:,.0f} "
                f"KiB, and the transfer takes {share:.0%} of the step"
            ),
            evidence=(Observation(name="FSDP units", value=model.units, expected=few),),
            cost=Cost(value=round(saved, 3), unit="share of step"),
            fixes=(
                Fix.python(
                    summary=f"wrap each {model.block} as a unit, and no layer within it",
                    paste=_wraps(model, model.block),
                    expected_gain=f"up to {saved:.0%} of the step",
                ),
            ),
        )


def small_units_in_the_source(
    script: Script, wrapping: Wrapping | None, live: LiveLook | None
) -> Iterator[Finding]:
    """The source wraps single layers of torch; whether they are small, it does not show."""
    for at in script.leaf_units[:1] if wrapping is None and live is None else ():
        yield _of_layers(at, 0.0, "")


def small_units_of_a_live_run(live: LiveState, script: Script) -> Iterator[Finding]:
    """The same, where all ranks wait, as the collectives of small units do."""
    share = min((one.waiting for one in live.ranks), default=0.0)
    for at in script.leaf_units[:1] if live.moves and share >= live_cost.TOLD else ():
        yield _of_layers(at, share, f"; all ranks wait {share:.0%} of the time")


def _of_layers(at: SourceLine, share: float, waits: str) -> Finding:
    return Finding(
        title="FSDP gathers layers one by one, each with separate collectives",
        severity=live_cost.severity(share),
        confidence=Confidence.LIKELY if waits else Confidence.POSSIBLE,
        because=f"{shown(at)} makes a unit of each such layer, with a separate all-gather and "
        f"reduce-scatter{waits}",
        cost=Cost(value=round(share, 2), unit="share of step") if waits else None,
        fixes=(
            Fix.python(
                summary="wrap each repeated block as a unit, and no layer within it",
                paste="for block in model.layers:  # the blocks of your model\n"
                "    fully_shard(block)\n"
                "fully_shard(model)",
            ),
        ),
    )


def refused(run: TrainingRun) -> Iterator[Finding]:
    for one in run.raised(REFUSED)[:1]:
        name = REFUSED.findall(one.said)[0] or "(not named)"
        at = endings.place(one.place)
        yield Finding(
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
            because=(
                f"the wrap policy names the layer class {name}, but the model has no class of that "
                f"name{f': {at}' if at else ''}"
            ),
            evidence=(Observation(name="layer class", value=name, source="accelerate"),),
            fixes=(
                Fix.python(
                    summary="list the classes that the model repeats, and name one of them",
                    paste=(
                        "from collections import Counter\n"
                        "print(Counter(type(m).__name__ for m in model.modules()).most_common(9))\n"
                        "# accelerate config: fsdp_transformer_layer_cls_to_wrap"
                    ),
                ),
            ),
        )


def _fixes(model: Wrapper, run: TrainingRun | None) -> Iterator[Fix]:
    block = model.block or "TransformerBlock"
    other = "" if model.block else f"replace {block} by the class of the model's repeated block"
    if run is not None and run.framework in ("accelerate", "transformers", "trl"):
        yield Fix(
            summary=f"wrap each {block} as a unit, in accelerate's configuration",
            paste=(
                "fsdp_config:\n"
                "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                f"  fsdp_transformer_layer_cls_to_wrap: {block}\n"
            ),
            language="yaml",
            caution=other,
        )
    yield Fix.python(
        summary=f"wrap each {block} as a unit", paste=_wraps(model, block), caution=other
    )


def _wraps(model: Wrapper, block: str) -> str:
    if model.kind == "fsdp2":
        return (
            "for module in model.modules():\n"
            f"    if isinstance(module, {block}):\n"
            "        fully_shard(module)\n"
            "fully_shard(model)"
        )
    return (
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy\n\n"
        f"policy = ModuleWrapPolicy({{{block}}})\n"
        "model = FullyShardedDataParallel(model, auto_wrap_policy=policy)"
    )
