"""The command line: each command collects, judges and renders, and decides nothing itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddoctor.commands.plan import plan
from ddoctor.report.options import BundlePath, Bundles, HtmlPath, JsonPath, MarkdownPath

app = typer.Typer(
    name="ddoctor",
    help="Find the one cause behind a slow, hanging or failing distributed PyTorch run.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _complete_causes(typed: str) -> list[str]:
    from ddoctor import engine

    return [name for name in engine.names() if name.startswith(typed)]


def _complete_probes(typed: str) -> list[str]:
    from ddoctor.probing import catalog

    return [name for name in catalog.names() if name.startswith(typed)]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"ddoctor {version_of('ddoctor')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def doctor(
    probe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this probe only; may be given several times.",
            autocompletion=_complete_probes,
        ),
    ] = None,
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Only look, measure nothing.")
    ] = False,
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The data folder whose reading is measured.")
    ] = Path(),
    force: Annotated[
        bool, typer.Option("--force", help="Measure on GPUs that other processes use, too.")
    ] = False,
    bundle: BundlePath = None,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Examine this machine, and say what to fix."""
    from ddoctor import engine
    from ddoctor.commands import doctor
    from ddoctor.errors import DoctorError
    from ddoctor.evidence import bundle as bundles
    from ddoctor.probing import catalog
    from ddoctor.report.output import Outputs, progress

    if probe and no_probes:
        raise DoctorError("--probe and --no-probes exclude each other: give one of them")
    outputs = Outputs(json=json, markdown=markdown, html=html, bundle=bundle)
    probes = () if no_probes else catalog.choose(probe)
    with progress() as started:
        evidence = doctor.observe(probes, data=data, force=force, started=started)
    if bundle is not None:
        bundles.write(bundle, evidence)
    report = engine.examine(evidence, "doctor")
    outputs.write(report, evidence)
    return report.exit_code


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def probe(context: typer.Context) -> int:
    """Examine all hosts of a run before it starts; run it on each of them in the same way."""
    from ddoctor.cluster import start as probe

    return probe.enter(context.args)


@app.command(
    add_help_option=False,
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
)
def run(context: typer.Context) -> None:
    """Start a training, and say where its steps go."""
    from ddoctor.training import start

    start.start(context.args)


@app.command()
def attach(
    pids: Annotated[
        list[int] | None,
        typer.Argument(metavar="PID...", help="Ranks, or their launcher; none: all on this host."),
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="The job, where several run here.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="How long to look; 10, and 4 where it watches."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until q is pressed.")
    ] = False,
    prometheus: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS:]PORT", help="Serve what --watch sees; to this machine alone."
        ),
    ] = None,
    native: Annotated[
        bool,
        typer.Option("--native", help="Into native code, too: each sample stops its process."),
    ] = False,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="What the run writes; again for more than one."),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Names of files in place of their paths.")
    ] = False,
    bundle: BundlePath = None,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Look at a run that is slow or stands still, as it is: nothing is stopped or changed."""
    from ddoctor.errors import DoctorError
    from ddoctor.evidence import bundle as bundles
    from ddoctor.live import attach, pace, watching
    from ddoctor.report.metrics import Metrics
    from ddoctor.report.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, html=html, bundle=bundle)
    pace.check(seconds)
    if prometheus is not None and not watch:
        raise DoctorError("--prometheus serves what --watch sees: give both")
    manner = attach.Manner(native=native, redact=redact, logs=log or ())
    if watch:
        metrics = Metrics(prometheus) if prometheus is not None else None
        report, evidence = watching.watch(pids or (), job, seconds, manner, metrics)
    else:
        report, evidence = watching.once(pids or (), job, seconds, manner)
    if bundle is not None:
        bundles.write(bundle, evidence)
    outputs.write(report, evidence)
    return report.exit_code


@app.command()
def diagnose(
    bundle: Bundles,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Judge evidence that was collected elsewhere or earlier."""
    from ddoctor import engine
    from ddoctor.evidence import bundle as bundles
    from ddoctor.report.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, html=html)
    evidence = bundles.read_all(bundle)
    report = engine.examine(evidence, "diagnose")
    outputs.write(report, evidence)
    return report.exit_code


app.command()(plan)


@app.command()
def report(bundle: Bundles, markdown: MarkdownPath = None, html: HtmlPath = None) -> int:
    """Write the report of evidence bundles as a page."""
    from ddoctor import engine
    from ddoctor.errors import DoctorError
    from ddoctor.evidence import bundle as bundles
    from ddoctor.report.output import Outputs

    if markdown is None and html is None:
        raise DoctorError("say what to write: --html PATH or --markdown PATH")
    outputs = Outputs(markdown=markdown, html=html)
    evidence = bundles.read_all(bundle)
    outputs.write_files(engine.examine(evidence, "diagnose"), evidence)
    return 0


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The bundle to compare with.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The bundle of now.")],
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the difference as JSON; - : stdout."),
    ] = None,
) -> int:
    """Say what became slower, what is set otherwise and what is found now; 1 if it got worse."""
    from ddoctor.evidence import bundle as bundles
    from ddoctor.report import difference
    from ddoctor.report.output import STDOUT, Outputs, put
    from ddoctor.report.wording import tamed

    Outputs(json=json)
    found = difference.compare(bundles.read(old), bundles.read(new))
    if json is not None:
        put(json, found.json())
    if json != STDOUT:
        typer.echo(tamed("\n".join(found.lines())))
    return int(found.worse)


@app.command()
def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A cause, as a finding names it.", autocompletion=_complete_causes
        ),
    ],
) -> None:
    """Explain a cause: what it is, why it hurts, how it looks."""
    from ddoctor import engine
    from ddoctor.errors import unknown

    cause = name.strip().lower().replace("_", "-")
    if cause not in engine.names():
        raise unknown("cause", name, engine.names())
    explanation = engine.load(cause).explanation.replace("``", "`")
    typer.echo(f"{cause}\n\n{explanation}")


@app.command(name="list")
def list_all() -> None:
    """List the causes that can be told, and the probes."""
    from ddoctor import engine
    from ddoctor.probing import catalog

    width = max(map(len, engine.names()))
    typer.echo("Causes (ddoctor explain NAME)\n")
    for check in engine.discover():
        typer.echo(f"  {check.name:{width}}  {check.title}")
    typer.echo("\nProbes (ddoctor doctor --probe NAME)\n")
    for probe in catalog.names():
        typer.echo(f"  {probe:{width}}  {catalog.describe(probe)}")
