"""Methods that save a model, where the configuration lets them save nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.prepared_models import saved_states
from ddoctor.analysis.script_source import shown
from ddoctor.evidence.launch import Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

GATHERS = (
    "deepspeed.zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "deepspeed.zero_optimization.stage3_gather_fp16_weights_on_model_save",
)
STAGE = "deepspeed.zero_optimization.stage"
OF_TRAINER = re.compile(r"^(?:transformers|trl)\.\w*Trainer$")


def without_weights(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """Calls that save no weights, or that are refused."""
    yield from _by_deepspeed(plan, script)
    yield from _parts_of_zero(plan, script)
    kind = plan.launch.get("fsdp.state_dict_type")
    # A script may choose another type before it saves.
    if kind is None or not plan.strategy.startswith("FSDP") or script.of(".set_state_dict_type"):
        return
    if kind.value == "SHARDED_STATE_DICT":
        yield from _by_a_trainer(kind, script)


def _by_deepspeed(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """deepspeed/runtime/engine.py, save_16bit_model: it only logs that it did not save."""
    stage, gathers = plan.launch.get(STAGE), plan.launch.get(*GATHERS)
    if stage is None or stage.number != 3 or (gathers is not None and gathers.value != "false"):
        return
    for one in script.of(".save_16bit_model")[:1]:
        yield _finding(
            "save_16bit_model saves nothing: ZeRO-3 does not gather the weights",
            f"{shown(one.at)} saves nothing: the stage is 3 ({stage.at}), and "
            "stage3_gather_16bit_weights_on_model_save is off",
            gathers or stage,
            Fix(
                summary="let ZeRO gather the weights as they are saved",
                paste='"stage3_gather_16bit_weights_on_model_save": true',
                language="text",
            ),
        )


def _parts_of_zero(plan: LaunchPlan, script: Script) -> Iterator[Finding]:
    """The state of a model whose parameters ZeRO-3 has replaced by empty ones.

    Source: deepspeed/runtime/zero/partition_parameters.py, free_param; accelerate/accelerator.py,
    get_state_dict, which gathers them.
    """
    stage = plan.get("zero-stage", STAGE, "deepspeed.zero_stage")
    # A context of DeepSpeed may gather them.
    if stage is None or plan.strategy != "DeepSpeed ZeRO-3" or script.in_parts is not None:
        return
    for one, model in saved_states(script):
        yield _finding(
            "A state that is saved under ZeRO-3 holds no weights",
            f"{shown(one.at)} saves parameters that ZeRO-3 keeps in parts elsewhere: the stage is "
            f"3 ({stage.at}), so the file holds empty tensors",
            stage,
            Fix.python(
                summary="gather the state on all ranks, and write it on one of them",
                paste=f"state = accelerator.get_state_dict({model})  # on all ranks",
                caution="with stage3_gather_16bit_weights_on_model_save, or zero3_save_16bit_model",
            ),
        )
        return


def _by_a_trainer(kind: Setting, script: Script) -> Iterator[Finding]:
    """transformers/trainer.py, save_model and create_accelerator_and_postprocess."""
    full = Fix(
        summary="save the whole state",
        paste="fsdp_state_dict_type: FULL_STATE_DICT",
        language="text",
        caution="rank 0 gathers the model in host memory",
    )
    for one in script.calls:
        if one.name.startswith(("transformers.", "trl.")) and (
            one.argument("save_only_model") == "True"
        ):
            yield _finding(
                "transformers refuses save_only_model with SHARDED_STATE_DICT",
                f"{shown(one.at)} sets save_only_model, and fsdp_state_dict_type is {kind.value} "
                f"({kind.at}): the Trainer raises ValueError",
                kind,
                full,
                Severity.ERROR,
            )
            return
    for one in script.of(".save_model"):
        if _is_of_a_trainer(one):
            yield _finding(
                "save_model writes no weights with SHARDED_STATE_DICT",
                f"{shown(one.at)} writes no weights that from_pretrained can load: "
                f"fsdp_state_dict_type is {kind.value} ({kind.at})",
                kind,
                Fix.python(
                    summary="choose the whole state before it is saved",
                    paste=f"{one.on}.accelerator.state.fsdp_plugin"
                    f'.set_state_dict_type("FULL_STATE_DICT")\n{one.at.text}',
                    caution="rank 0 gathers the model in host memory",
                ),
            )
            return


def _is_of_a_trainer(call: SourceCall) -> bool:
    return bool(call.made_by) and all(map(OF_TRAINER.match, call.made_by))


def _finding(
    title: str, because: str, at: Setting, fix: Fix, severity: Severity = Severity.WARNING
) -> Finding:
    return Finding(
        title=title,
        severity=severity,
        confidence=Confidence.LIKELY,
        because=because,
        evidence=(Observation(name=at.name.rpartition(".")[2], value=at.value, source=at.at),),
        fixes=(fix,),
    )
