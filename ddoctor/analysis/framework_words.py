"""Settings in the words of the framework that the script uses."""

from __future__ import annotations

from ddoctor import knowledge
from ddoctor.evidence.frameworks import KnownFrameworks


def written(framework: str, setting: str, value: object, plain: str) -> str:
    """What to paste for a setting; ``plain``: what it is where the framework has no own words."""
    own = knowledge.load(KnownFrameworks).writing(framework, setting)
    return own.format(value=value) if own else plain


def has(framework: str, setting: str) -> bool:
    """Whether the framework writes the setting in its own way."""
    return bool(knowledge.load(KnownFrameworks).writing(framework, setting))
