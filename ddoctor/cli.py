"""The command line `ddoctor`: one module per command, imported when the command is called."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ddoctor import options

# The lines of the help stand here, so that it need not import every command and its options.
COMMANDS = {
    "doctor": "Check this machine, and a launch command before it runs.",
    "probe": "Measure all hosts of a run together before it starts.",
    "run": "Record a training script and report where its time goes.",
    "attach": "Sample a slow or hanging run without changing it (py-spy).",
    "diagnose": "Diagnose logs, traces and evidence bundles of other hosts or earlier runs.",
    "plan": "Forecast GPU memory and time; recommend DDP, FSDP or ZeRO.",
    "report": "Write an HTML or Markdown report of evidence bundles.",
    "diff": "Compare two evidence bundles.",
    "explain": "Explain a cause: why it hurts and how to recognise it.",
    "list": "List all causes and probes.",
}


class Commands(TyperGroup):
    """The commands of ``COMMANDS``: each is a function of the module with its name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {name: TyperCommand(name, help=line) for name, line in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        if name is not None:
            module = import_module(f"ddoctor.commands.{name}")
            found = options.command(getattr(module, name), **getattr(module, "SETTINGS", {}))
        return name, found, rest


app = options.app(
    name="ddoctor",
    cls=Commands,
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
