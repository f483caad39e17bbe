"""Which layers of a script's models the options of a launch leave out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddoctor.analysis.derived import Derived
from ddoctor.analysis.source_options import in_launch
from ddoctor.evidence.launch import Launch, Setting
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_facts import SourceSwitch, SourceTest

OFF = ("", "0", "0.0", "false", "none", "null")


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A layer that no step uses, and the option that decides it."""

    layer: SourceSwitch
    option: str
    """Empty: the source decides it."""
    setting: Setting | None = None
    """Where the launch sets the option; None: its default in the source counts."""
    value: str


@dataclass(frozen=True, kw_only=True)
class SwitchedLayers(Derived):
    """The layers that this launch leaves out."""

    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def derive(cls, script: Script, launch: Launch | None) -> SwitchedLayers:
        """Those whose every use depends on an option with another value."""
        return cls(left_out=tuple(_left_out(script, launch)))


def _left_out(script: Script, launch: Launch | None) -> Iterator[LeftOut]:
    for one in script.switched_layers:
        decided = [_fails(tests, launch) for tests in one.uses]
        first = decided[0] if decided else None
        if first is not None and all(decided):
            test, setting, value = first
            yield LeftOut(layer=one, option=test.option, setting=setting, value=value)


def _fails(
    tests: tuple[SourceTest, ...], launch: Launch | None
) -> tuple[SourceTest, Setting | None, str] | None:
    """The first of the tests that is false in this launch; None: all may hold."""
    for test in tests:
        setting, value = _value(test, launch)
        holds = _holds(test, value) if value is not None else None
        if value is not None and holds is not None and holds is test.negated:
            return test, setting, value
    return None


def _value(test: SourceTest, launch: Launch | None) -> tuple[Setting | None, str | None]:
    return in_launch(test.option, test.given, launch) if test.option else (None, test.given)


def _holds(test: SourceTest, value: str) -> bool | None:
    """Whether the comparison itself holds; None: not known."""
    if test.operator == "true":
        return value.strip().lower() not in OFF
    if test.operator in ("==", "!="):
        return (_plain(value) == _plain(test.value)) is (test.operator == "==")
    try:
        left, right = float(value), float(test.value)
    except ValueError:
        return None
    return {">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[
        test.operator
    ]


def _plain(value: str) -> str | float:
    """A value as it compares: 1 equals 1.0, and null is None."""
    text = value.strip().lower()
    try:
        return float(text)
    except ValueError:
        known: dict[str, str | float] = {"null": "none", "true": 1.0, "false": 0.0}
        return known.get(text, text)
