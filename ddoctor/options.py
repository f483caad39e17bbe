"""Options as dataclasses: declared once, parsed by typer, turned back into arguments."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from math import inf
from typing import Any, TypeVar, get_type_hints

import typer

from ddoctor.errors import DoctorError

Options = TypeVar("Options")
Result = TypeVar("Result")

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    # Like torchrun, which accepts --nproc_per_node and --nproc-per-node.
    "token_normalize_func": lambda word: word.replace("_", "-"),
}
"""Settings that all commands share."""
BEFORE_A_COMMAND = {
    **SETTINGS,
    "allow_interspersed_args": False,
    # `-m MODULE` is part of the command.
    "ignore_unknown_options": True,
}
"""Settings for options that end where a command with its own options begins."""
COMPLETION = "_DDOCTOR_COMPLETE"
"""The variable by which a shell would ask for completions."""


def _positive(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < inf:
        raise typer.BadParameter(f"{seconds} is not a positive number of seconds.")
    return seconds


def seconds(text: str, metavar: str = "SECONDS", **given: Any) -> Any:
    """An option that takes a positive, finite number of seconds."""
    return typer.Option(metavar=metavar, help=text, callback=_positive, **given)


def app(**given: Any) -> typer.Typer:
    """A command line that shows plain help and raises its errors."""
    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, **given)


def command(run: Callable[..., Any], **given: Any) -> Any:
    """The command that calls a function; its help is the function's docstring.

    If the parameter ``options`` is a dataclass of options, its fields become the options: its own
    come first, then those of its bases.
    """
    called, kind = run, get_type_hints(run, include_extras=True).get("options")
    if kind is not None:
        called = _signed(kind, lambda **given: run(kind(**given)))
    alone = app(add_completion=False)
    alone.command(help=run.__doc__, **{"context_settings": SETTINGS, **given})(called)
    return typer.main.get_command(alone)


def parse(
    kind: type[Options],
    words: Sequence[str],
    program: str,
    *,
    quiet: bool = False,
    settings: Mapping[str, Any] = SETTINGS,
) -> Options | None:
    """Parse ``words``; None: they ask for help, which is shown unless ``quiet``.

    Raises:
        DoctorError: an option is unknown, or its value is wrong.
    """
    parser = app(add_completion=False)
    parser.command(help=kind.__doc__, context_settings=dict(settings))(_signed(kind, kind))
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere if quiet else sys.stdout):
            # The name of the variable, else made from the program's, must be ASCII in some locales.
            found = parser(
                list(words), prog_name=program, complete_var=COMPLETION, standalone_mode=False
            )
    except typer.TyperException as error:
        raise DoctorError(explained(error)) from error
    return found if isinstance(found, kind) else None


def words(kind: type[Any], options: object) -> list[str]:
    """The options of ``kind`` that differ from their defaults, as arguments; lists come last."""
    named: list[str] = []
    arguments: list[str] = []
    for field in fields(kind):
        value, name = getattr(options, field.name), f"--{field.name.replace('_', '-')}"
        if value == field.default:
            continue
        if isinstance(value, list):
            arguments += value
        else:
            named.append(name if value is True else f"{name}={value}")
    return [*named, *arguments]


def explained(error: typer.TyperException) -> str:
    """The error of a command line, and how to get its help."""
    context = getattr(error, "ctx", None)
    program = context.command_path if context is not None else "ddoctor"
    return f"{error.format_message()} See `{program} --help`."


def _signed(kind: type[Any], run: Callable[..., Result]) -> Callable[..., Result]:
    """A function that takes the fields of a dataclass, as typer reads it."""
    hints = get_type_hints(kind, include_extras=True)
    ordered = [name for base in kind.__mro__ for name in inspect.get_annotations(base)]
    defaults = inspect.signature(kind).parameters

    def signed(**given: Any) -> Result:
        return run(**given)

    signed.__annotations__ = {name: hints[name] for name in ordered}
    signed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [defaults[name].replace(annotation=hints[name]) for name in ordered]
    )
    return signed
