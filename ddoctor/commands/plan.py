"""The command ``ddoctor plan``: its options, collected for the forecast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddoctor.report.options import BundlePath, HtmlPath, JsonPath, MarkdownPath


def plan(
    model: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="A config.json, its folder, or a name of the Hub."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="In place of it, a function of your own."),
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="N", help="In place of it, its parameters: 4.4B.")
    ] = None,
    trainable: Annotated[
        str | None, typer.Option(metavar="N", help="Those of them that are trained; else all.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="fp32, bf16-mixed (if nothing is said), fp16-mixed, bf16."
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="adamw (if nothing is said), adamw-fp32 (its states), adamw-8bit, sgd or "
            "adafactor.",
        ),
    ] = None,
    activations: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of one micro-batch on one GPU: 10GB.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers that FSDP would wrap; 32.", min=1)
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of a sample; of --model 2048.", min=1),
    ] = None,
    checkpointing: Annotated[
        str, typer.Option(metavar="NAME", help="Of the blocks of --model: every, or selective.")
    ] = "none",
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Say h100-80, or rtx-4090.")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="In place of --gpu: 24GiB.")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of each host, with its 8 GPUs: 1TiB.")
    ] = None,
    gpus: Annotated[
        str, typer.Option(metavar="N,...", help="How many there could be.")
    ] = "1,2,4,8",
    micro_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Samples of one GPU at a time.", min=1)
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option(metavar="N", help="Samples of one step of the optimizer.", min=1)
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="N", help="Of an epoch: 45000, or 50x30x30.")
    ] = None,
    epochs: Annotated[float, typer.Option(metavar="N", help="How often through them.")] = 1.0,
    step: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds of a step, as somebody measured it.")
    ] = None,
    loading: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds that --step waits for its data.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="BUNDLE",
            help="Take the step from a run, or a sweep, and from a run the model, too, if no other "
            "is named; again: links from collectives.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write what starts it: for accelerate and torchrun."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace these files, where --write finds some.")
    ] = False,
    bundle: BundlePath = None,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Forecast the memory of a training on other GPUs, and say how to spread it."""
    from ddoctor import engine
    from ddoctor.errors import DoctorError
    from ddoctor.evidence import bundle as bundles
    from ddoctor.evidence.section import Evidence
    from ddoctor.forecast import request
    from ddoctor.forecast.launch_folder import LaunchFolder
    from ddoctor.report.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, html=html, bundle=bundle)
    if force and write is None:
        raise DoctorError("--force goes with --write: it says that its files may be replaced")
    folder = LaunchFolder(path=write, replace=force) if write is not None else None
    wanted = request.PlanRequest(
        workload=workload,
        params=params,
        model=model,
        trainable=trainable,
        precision=precision,
        optimizer=optimizer,
        activations=activations,
        layers=layers,
        sequence=sequence,
        checkpointing=checkpointing,
        gpu=gpu,
        device_memory=device_memory,
        host_memory=host_memory,
        gpus=gpus,
        micro_batch=micro_batch,
        global_batch=global_batch,
        samples=samples,
        epochs=epochs,
        step=step,
        loading=loading,
        measured=tuple(measured or ()),
    )
    planned = request.plan(wanted)
    evidence = Evidence([planned])
    if bundle is not None:
        bundles.write(bundle, evidence)
    report = engine.examine(evidence, "plan")
    outputs.write(report, evidence)
    if folder is not None:
        folder.write(planned)
    return report.exit_code
