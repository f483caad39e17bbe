"""What the templates of the page and of the Markdown share: the modules that they call."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

MODULES = (
    *("advice", "advice_chart"),
    *("charts", "expectation", "facts", "fitness", "heat", "hosts", "live", "memory", "plan"),
    *(
        "ranks",
        "repeats",
        "run_history",
        "run_history_chart",
        "scale",
        "step_breakdown",
        "timeline",
        "training",
        "training_charts",
        "waits",
        "wording",
    ),
)


@cache
def environment(**options: Any) -> Environment:
    """Return the environment in which both templates are rendered."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("ddoctor", "report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    made.globals.update((name, import_module(f"ddoctor.report.{name}")) for name in MODULES)
    return made
