"""FSDP loads the weights on rank 0 only, but nothing sends them to the other ranks.

With ``fsdp_cpu_ram_efficient_loading`` only rank 0 reads the checkpoint, and the other ranks have
placeholders. ``fsdp_sync_module_states`` sends them the weights. Without it they train from random
or uninitialised numbers, or NaN. Newer versions of accelerate switch it on with a warning,
and their launcher refuses a file that has it off.

Symptoms: a loss as of an untrained model, or NaN, from the first step on.

To fix it, set ``fsdp_sync_module_states: true``, or switch off the loading on rank 0 only.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.analysis.script_source import shown
from ddoctor.analysis.versions import version
from ddoctor.evidence.known_software import within
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.evidence.software import Software
from ddoctor.models import Confidence, Finding, Fix, Observation, Severity

# accelerate/utils/launch.py, prepare_multi_gpu_env.
REFUSES = ">=1.0"
LOADS, SENDS = "fsdp.cpu_ram_efficient_loading", "fsdp.sync_module_states"


def in_a_launch(launch: Launch, software: Software | None) -> Iterator[Finding]:
    sends, loads = launch.get(SENDS), launch.get(LOADS)
    fsdp = launch.get("fsdp.version")
    # FSDP2 needs no such setting.
    if sends is None or loads is None or (fsdp is not None and fsdp.value == "2"):
        return
    if loads.on and not sends.on and sends.value != "null":
        used = version("accelerate", launch, software)
        # Options of the line are texts there, which are never false.
        written = launch.launcher == "accelerate" and loads.file and sends.file
        refused = used is not None and bool(written) and within(used.value, REFUSES)
        yield Finding(
            title="accelerate refuses to load the weights on rank 0 only without sending them"
            if refused
            else "",
            severity=Severity.ERROR if refused else Severity.WARNING,
            confidence=Confidence.LIKELY if refused else Confidence.POSSIBLE,
            because=f"only rank 0 loads the weights ({loads.at}), and fsdp_sync_module_states is "
            f"off ({sends.at}); "
            + (
                f"accelerate {used.value} ({used.at}) raises ValueError before it starts a rank"
                if refused and used is not None
                else "versions of accelerate that do not switch it on by themselves leave the "
                "other ranks with random weights"
            ),
            evidence=(
                Observation(name="cpu_ram_efficient_loading", value=loads.value, source=loads.at),
                Observation(name="sync_module_states", value=sends.value, source=sends.at),
            ),
            fixes=(
                Fix(
                    summary="send the weights of rank 0 to all ranks",
                    paste="fsdp_sync_module_states: true",
                    language="text",
                ),
            ),
        )


def of_a_version(launch: Launch, software: Software | None) -> Iterator[Finding]:
    """Placeholders of transformers 5.4 and 5.5 hold whatever was in memory, such as NaN."""
    installed, loads = version("transformers", launch, software), launch.get(LOADS)
    fsdp = launch.get("fsdp.version")
    if installed is None or loads is None or not loads.on or fsdp is None or fsdp.value != "2":
        return
    if within(installed.value, ">=5.4,<5.6"):
        yield Finding(
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            because=f"only rank 0 loads the weights ({loads.at}), and transformers "
            f"{installed.value} ({installed.at}) leaves the others' placeholders uninitialised: "
            "NaN may stay in them",
            evidence=(
                Observation(
                    name="transformers",
                    value=installed.value,
                    expected=">=5.6",
                    source="https://github.com/huggingface/transformers/pull/45050",
                ),
            ),
            fixes=(
                Fix(summary="use a fixed release", paste="pip install 'transformers>=5.6'"),
                Fix(
                    summary="or let every rank load the weights",
                    paste="fsdp_cpu_ram_efficient_loading: false",
                    language="text",
                ),
            ),
        )


FSDP = "torch.distributed.fsdp.FullyShardedDataParallel"
SETS = (
    "torch.distributed.checkpoint.set_model_state_dict",
    "torch.distributed.checkpoint.set_state_dict",
)
LATER = (*SETS, "torch.distributed.checkpoint.load", "torch.distributed.broadcast")
"""What gives the other ranks the weights after the model is sharded."""


def in_the_source(script: Script) -> Iterator[Finding]:
    """Only rank 0 has the weights in the source as well, and nothing sends them."""
    loads, fills = script.loads_on_one_rank, script.fills_in
    if script.unseen or loads is None or fills is None:
        return
    for one in script.of(FSDP) if not script.of(*LATER) else ():
        sends = one.argument("sync_module_states")
        if "**" not in one.keywords and sends in (None, "False"):
            yield _unsent(
                f"{shown(fills)} makes room for the weights on ranks other than 0, which alone "
                f"loads them ({loads.place}), and {shown(one.at)} does not send them: those ranks "
                "train from whatever was in that memory",
                "model = FSDP(model, sync_module_states=True, ...)",
            )
            return
    for one in script.of(*SETS):
        given = one.argument("options", 2) or ""
        options = f"{given} {one.values.get('options', '')}"
        if "full_state_dict=True" in options and "broadcast_from_rank0=True" not in options:
            yield _unsent(
                f"only rank 0 loads the state ({shown(loads)}), and {shown(one.at)} does not send "
                "it: the shards of the other ranks stay as they are",
                "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)",
            )
            return


def _unsent(because: str, paste: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        because=because,
        fixes=(Fix.python(summary="send the weights of rank 0 to all ranks", paste=paste),),
    )
