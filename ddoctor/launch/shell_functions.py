"""The functions of a shell script: their bodies are kept until a line calls them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

Rows = tuple[int, ...]
"""The line of a word, or those of a text that quotes hold together."""
Simple = tuple[list[tuple[str, Rows]], bool]
"""The words of a simple command, and whether the shell continues without waiting for its end."""
# `name() {`, `name () {` and `function name() {`; a shell takes all for the same.
HEADER = re.compile(r"^(\s*)(?:function\s+)?([A-Za-z_][\w.-]{0,199})\s*\(\s*\)")
BEFORE = ("then", "do", "else", "!", "{")
"""Words that may come before the bracket of a group."""
MOST_CALLS, MOST_WITHIN = 500, 8
"""Of one script, and within each other."""


def plain_header(line: str) -> str:
    """A line with ``function name`` where it defines a function."""
    return HEADER.sub(r"\1function \2 ", line)


@dataclass(kw_only=True)
class Functions:
    """What a script defines, in the order of its lines."""

    bodies: dict[str, list[Simple]] = field(default_factory=dict)
    called: list[str] = field(default_factory=list)
    within: list[str] = field(default_factory=list)
    """Those that the line at hand is in."""
    _name: str = ""
    _depth: int = 0

    def keeps(self, command: Simple) -> bool:
        """Whether a command is a part of a definition, which then has it."""
        words, beside = command
        texts = [text for text, _ in words]
        if not self._name:
            if texts[:1] != ["function"] or len(texts) < 2:
                return False
            self._name, self._depth = texts[1], 0
            self.bodies[self._name] = []
            return not words[2:] or self.keeps((words[2:], beside))
        if not texts:
            return True
        if not self._depth and texts[0] != "{":
            # Its body is no group: a shell reads a sub-shell or one command as it stands.
            self._name = ""
            return False
        begins = not self._depth
        self._depth += _opened(texts) - (texts[0] == "}")
        if self._depth:
            self.bodies[self._name].append((words[1:] if begins else words, beside))
        else:
            self._name = ""
        return True

    def may_call(self, name: str) -> bool:
        """Whether a word is the name of a function that is not at work already."""
        few = len(self.called) < MOST_CALLS and len(self.within) < MOST_WITHIN
        return few and name in self.bodies and name not in self.within

    @property
    def unused(self) -> Sequence[Simple]:
        """The bodies that no line has called: text does not tell what calls them, if anything."""
        names = self.bodies.keys() - {*self.called}
        return [one for name, body in self.bodies.items() if name in names for one in body]


def _opened(texts: Sequence[str]) -> int:
    """How many groups a command opens before its first word."""
    count = 0
    for text in texts:
        if text not in BEFORE:
            break
        count += text == "{"
    return count
