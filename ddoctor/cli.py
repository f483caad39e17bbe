"""The command line `ddoctor`, built from one module per command."""

from __future__ import annotations

from typing import Annotated

import typer

from ddoctor import options
from ddoctor.commands.attach import attach
from ddoctor.commands.diagnose import diagnose
from ddoctor.commands.diff import diff
from ddoctor.commands.doctor import doctor
from ddoctor.commands.explain import explain, list_all
from ddoctor.commands.plan import plan
from ddoctor.commands.probe import NOTE, probe
from ddoctor.commands.report import report
from ddoctor.commands.run import run

app = options.app(
    name="ddoctor",
    help="Find the cause of a slow, hanging or failing distributed PyTorch run.",
    context_settings=options.SETTINGS,
)


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


app.command()(options.command(doctor))
app.command(epilog=NOTE)(options.command(probe))
app.command(options_metavar="[OPTIONS] [--]", context_settings=options.BEFORE_A_COMMAND)(
    options.command(run)
)
app.command()(options.command(attach))
app.command()(diagnose)
app.command()(options.command(plan))
app.command()(report)
app.command()(diff)
app.command()(explain)
app.command(name="list")(list_all)
