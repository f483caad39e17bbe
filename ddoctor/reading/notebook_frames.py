"""Frames of a traceback as IPython prints them, in notebooks and their logs."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ddoctor.evidence.frames import Frame
from ddoctor.reading.libraries import LIBRARY

HEAD = re.compile(r"^(?P<name>[A-Za-z_][\w.]{0,200}) +Traceback \(most recent call last\)\s*$")
"""What such a traceback begins with, and where the class of its exception stands first."""
FRAME = re.compile(
    r"^(?:File (?P<file>[^\s:]{1,1000}):(?P<line>\d{1,9})(?:, in (?P<function>[\w.<>]{1,200})\(.*)?"
    r"|Cell (?P<cell>In ?\[\d{1,9}\]), line (?P<at>\d{1,9}).*"
    # Before version 8 the number of the line stands at the arrow.
    # Colab makes a link of the file.
    r"|\[?(?P<path>[/~][^\s\]]{1,1000}|<ipython-input-[^>\s]{1,100}>)(?:\]\(\S{1,200}\))?"
    r" in (?P<name>[\w<>]{1,200}|<cell line: \d{1,9}>)(?:\(.*)?)$"
)
LINK = "](https://localhost:8080/#) in "
MODULE = "<module>"
ARROW = re.compile(r"^-{1,9}> ?(?P<line>\d{1,9}) (?P<text>.{1,1000})$")


def is_linked(text: str) -> bool:
    """Whether a line is a frame with Colab's link, which no other text resembles."""
    return text.startswith("[/") and LINK in text and FRAME.match(text) is not None


def add(stack: list[Frame], text: str) -> bool:
    """Take a line of a traceback into its stack, outermost frame first; False: it is none."""
    if match := FRAME.match(text):
        file = match["file"] or match["path"] or f"Cell {match['cell']}"
        # In angle brackets it would count as code that is not the user's.
        file = file.strip("<>")
        name = (match["function"] or match["name"] or MODULE).rpartition(".")[2]
        if name.startswith("<cell"):
            name = MODULE
        line = int(match["line"] or match["at"] or 0)
        of_user = LIBRARY.search(file) is None
        stack.append(Frame(file=file, line=line, function=name, of_user=of_user))
        return True
    # The lines around the one that it points to come without an arrow.
    if stack and (match := ARROW.match(text)):
        stack[-1] = replace(stack[-1], line=int(match["line"]), text=match["text"].strip())
        return True
    return False
