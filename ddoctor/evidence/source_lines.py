"""Lines, calls and loops of a source, as evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.section import Part

Within = Literal[
    "epoch",
    "training",
    "loop",
    "one-rank",
    "other-ranks",
    "some-ranks",
    "main-first",
    "condition",
    "no-grad",
    "no-sync",
]
"""What contains a statement.

``training``: the loop that calls backward and steps an optimizer; ``epoch``: a loop around that;
``one-rank``: what only rank 0 or the main process runs; ``other-ranks``: what it does not run;
``some-ranks``: a test of the rank of another kind; ``main-first``: what the main process runs
before the others, as in ``main_process_first()``.
"""
UNKNOWN = "?"
"""An origin that the source does not show, such as an argument of a function."""


class SourceLine(Part, frozen=True, kw_only=True):
    """A line of the source."""

    file: str
    """Its path from the folder of the script."""
    line: int
    text: str
    """The statement, in one line."""
    function: str = ""
    """The function or method that contains it; empty: the top level of the file."""

    @property
    def place(self) -> str:
        """File and line, such as ``train.py:120``."""
        return f"{self.file}:{self.line}"

    def holds(self, frame: Frame) -> bool:
        """Whether a frame, whose file may have a longer path, is at this line."""
        return frame.line == self.line and frame.file.endswith(self.file)


SAVES: Mapping[str, tuple[str, int]] = {
    "torch.save": ("f", 1),
    "safetensors.torch.save_file": ("filename", 1),
    ".save_pretrained": ("save_directory", 0),
}
"""Calls that write a file or a folder, and the keyword and position of its name.

``save_pretrained`` writes on each rank unless it gets ``is_main_process=False``
(transformers/modeling_utils.py).
"""


class SourceCall(Part, frozen=True, kw_only=True):
    """A call that matters to a distributed run."""

    name: str
    """The full name, such as ``torch.distributed.barrier``; ``.step`` for a method of an object."""
    at: SourceLine
    arguments: tuple[str, ...] = ()
    """The source of the positional arguments."""
    keywords: Mapping[str, str] = {}
    """The source of the keyword arguments; of ``**options``, those that its dictionary gives."""
    spread: Mapping[str, tuple[str, ...]] = {}
    """Which of them a dictionary gives, by its variable."""
    origins: Mapping[str, tuple[str, ...]] = {}
    """What makes the value of an argument, by its keyword or its position.

    Names of the called functions, ``os.environ[RANK]`` for a variable, literals, or ``UNKNOWN``.
    """
    values: Mapping[str, str] = {}
    """The sources of what an argument, a variable, is assigned from, and of the variables in it:
    ``per_epoch * epochs; per_epoch = len(loader)``."""
    on: str = ""
    """The object of a method, such as ``optimizer``."""
    made_by: tuple[str, ...] = ()
    """The origins of that object."""
    assigned: str = ""
    """The variable that gets the result."""
    within: tuple[Within, ...] = ()
    """The loops and branches that contain it, the innermost last: those of its function, and those
    around the only call of that function."""
    test: str = ""
    """The condition of the innermost branch around it that does not test a rank."""
    unless: str = ""
    """The condition on which the step, or the function, is left right before it."""
    branch: SourceLine | None = None
    """The innermost branch around it that tests a rank."""
    always: bool = False
    """Whether every run of the script reaches it, unless it ends before."""
    for_some_ranks: bool = False
    """Whether a caller of its function, or a decorator, tests the rank."""
    loop: SourceLine | None = None
    """The innermost loop around it in its function."""
    collective: SourceLine | None = None
    """The collective that it is, or that a function of the user always calls."""
    of_script: bool = False
    """Whether it calls a function of the script, such as its own method ``backward``."""

    @property
    def step(self) -> tuple[Within, ...]:
        """What contains it within the training loop; empty also if no such loop does."""
        loops = [at for at, one in enumerate(self.within) if one == "training"]
        return self.within[loops[-1] + 1 :] if loops else ()

    @property
    def in_each_step(self) -> bool:
        """Whether every step of the training calls it."""
        return "training" in self.within and not self.step

    @property
    def on_all_ranks(self) -> bool:
        """Whether nothing around it or its function tests the rank."""
        ranks = {"one-rank", "other-ranks", "some-ranks", "main-first"}
        return not self.for_some_ranks and not ranks & set(self.within)

    def argument(self, keyword: str, position: int | None = None) -> str | None:
        """The source of an argument; None: it is not given."""
        if keyword in self.keywords:
            return self.keywords[keyword]
        given = position is not None and position < len(self.arguments)
        return self.arguments[position] if given and position is not None else None

    def held(self, keyword: str, position: int | None = None) -> str:
        """The source of what the variable of an argument holds; empty: no line shows it."""
        return self.values.get(keyword, self.values.get(str(position), ""))

    def origin(self, keyword: str, position: int | None = None) -> tuple[str, ...]:
        """The origins of an argument; empty: it is not given."""
        return self.origins.get(keyword, self.origins.get(str(position), ()))


class SourceLoop(Part, frozen=True, kw_only=True):
    """A training loop, or a loop over epochs around one."""

    at: SourceLine
    kind: Literal["training", "epoch"]
    exhausts: bool = False
    """Whether it ends with its items alone: no line counts steps, breaks, or asks other ranks."""
