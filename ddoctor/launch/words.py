"""Words of a command, each with the line of the file in which it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddoctor.evidence.launch import Setting

LINE = "the command line"


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a command."""

    text: str
    file: str = ""
    line: int = 0
    resolved: bool = True
    """Whether all variables in it are known."""
    rows: tuple[int, ...] = ()
    """The lines of a text that quotes hold together, one for each line of it."""
    unless: str = ""
    """What may replace a default of the shell in it, such as ``HOST replaces localhost``."""
    early: bool = False
    """Whether the shell of its line puts in a number of a task, and not the shell that gets it."""

    def setting(self, name: str, value: str) -> Setting:
        """A value that this word gives."""
        origin = self.unless if self.file else LINE
        return Setting(name=name, value=value, file=self.file, line=self.line, origin=origin)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, and the variables that are set where it runs."""

    words: tuple[Word, ...]
    variables: tuple[Setting, ...] = ()
    """Those of the line and of the script before it; the last of a name counts."""
    settings: tuple[Setting, ...] = ()
    """What the file around it sets for it."""
    beside: bool = False
    """Whether the shell continues without waiting for its end."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The words without their places."""
        return tuple(word.text for word in self.words)


def typed(texts: Sequence[str]) -> Command:
    """A command as it was typed."""
    return Command(words=tuple(Word(text=text) for text in texts))
