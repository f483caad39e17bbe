"""Which branch of a shell script's ``if`` runs, and what its branches leave behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq, ge, gt, le, lt, ne

from ddoctor.evidence.launch import Setting
from ddoctor.launch.words import Word

OPEN = ("[", "[[", "test")
CLOSE = ("]", "]]")
LEADING = ("if", "then", "elif", "else", "fi", "do", "{", "!")
# What nothing in the script sets; schedulers, launchers and shells set the latter.
UNSET = re.compile(r"\$\{?(?!SLURM|PBS|LSB|OMPI|PMI|CUDA|CONDA|HOME|HOST|USER|PATH)[A-Za-z_]\w*\}?")
COMPARED: Mapping[str, Callable[[str, str], bool]] = {"=": eq, "==": eq, "!=": ne}
COUNTED: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": eq,
    "-ne": ne,
    "-gt": gt,
    "-ge": ge,
    "-lt": lt,
    "-le": le,
}
MOST_BRANCHES = 100
"""Levels of ``if`` within each other."""


@dataclass(kw_only=True)
class State:
    """What a script has set so far."""

    variables: dict[str, Setting]
    exported: set[str]
    arrays: dict[str, list[Word]]

    def copy(self) -> State:
        """The same, which later lines do not change."""
        arrays = {name: [*words] for name, words in self.arrays.items()}
        return State(variables={**self.variables}, exported={*self.exported}, arrays=arrays)

    def become(self, other: State) -> None:
        """Take what another one holds; scripts that read each other share the containers."""
        for own, new in ((self.variables, other.variables), (self.arrays, other.arrays)):
            own.clear()
            own.update(new)  # type: ignore[arg-type]
        self.exported.clear()
        self.exported.update(other.exported)


@dataclass(kw_only=True)
class _Branch:
    """An ``if`` that is open."""

    before: State
    condition: list[Word] | None = None
    """The words of the condition that is being read; None: ``then`` or ``else`` came."""
    runs: bool | None = None
    """Whether the branch at hand runs; None: not known."""
    taken: State | None = None
    """What the branch leaves behind that runs."""
    may_run: bool = False
    """Whether a branch came that may have run."""
    unsure: list[State] = field(default_factory=list)
    """What the branches leave behind of which this is not known."""


@dataclass(kw_only=True)
class Branches:
    """The branches around the line at hand."""

    open: list[_Branch] = field(default_factory=list)
    conditional: list[Word] = field(default_factory=list)
    """What reaches commands only under conditions that are not known."""

    def before(self, first: str, state: State) -> None:
        """See the first word of a command, before variables are put into the others."""
        if first == "elif" and self.open:
            self._end(state)

    def read(self, words: Sequence[Word], state: State) -> None:
        """See one command, before it counts."""
        begins = words[0].text if words else ""
        if begins not in LEADING and self.open and self.open[-1].condition is not None:
            # A second command of the condition: after `&&`, `||`, or in a pipe.
            self.open[-1].condition = []
        for at, word in enumerate(words):
            if word.text not in LEADING:
                return
            if word.text in ("if", "elif"):
                self._begin(word.text, words[at + 1 :], state)
                return
            if self.open:
                self._continue(word.text, state)

    def _begin(self, word: str, condition: Sequence[Word], state: State) -> None:
        if word == "if" and len(self.open) < MOST_BRANCHES:
            self.open.append(_Branch(before=state.copy(), condition=[*condition]))
        elif word == "elif" and self.open:
            self.open[-1].condition = [*condition]

    def _continue(self, word: str, state: State) -> None:
        inner = self.open[-1]
        if word == "then":
            inner.runs = _truth(inner.condition or ())
            if inner.taken is not None:
                inner.runs = False
            elif inner.runs and inner.may_run:
                inner.runs = None
            inner.condition = None
        elif word == "else":
            self._end(state)
            inner.runs = _else(inner)
        elif word == "fi":
            self._end(state)
            self._leave(self.open.pop(), state)

    def _end(self, state: State) -> None:
        """End a branch: the next one begins with what was set before all of them."""
        inner = self.open[-1]
        if inner.runs:
            inner.taken = state.copy()
        elif inner.runs is None:
            inner.may_run = True
            inner.unsure.append(state.copy())
        state.become(inner.before.copy())

    def _leave(self, inner: _Branch, state: State) -> None:
        if inner.taken is not None:
            state.become(inner.taken)
        for one in inner.unsure:
            for name, setting in one.variables.items():
                if inner.before.variables.get(name) != setting:
                    # Neither value is known to count.
                    state.variables.pop(name, None)
                    if name in one.exported:
                        text = f"{name}={setting.value}"
                        self.conditional.append(
                            Word(text=text, file=setting.file, line=setting.line)
                        )
            for name, words in one.arrays.items():
                before = inner.before.arrays.get(name, [])
                if words[: len(before)] == before:
                    self.conditional += words[len(before) :]
                else:
                    state.arrays.pop(name, None)


def _else(inner: _Branch) -> bool | None:
    if inner.taken is not None:
        return False
    return None if inner.may_run else True


def _truth(words: Sequence[Word]) -> bool | None:
    """Whether ``[ … ]`` is true; None: it is not known.

    For ``-z``, a variable that nothing sets counts as empty, as in ``${NAME:-default}``.
    """
    negated = sum(word.text == "!" for word in words) % 2 == 1
    texts = [word.text for word in words if word.text != "!"]
    if not texts or texts[0] not in OPEN:
        return None
    texts = [one for one in texts[1:] if one not in CLOSE]
    if len(texts) == 2 and texts[0] == "-z" and UNSET.fullmatch(texts[1]):
        texts[1] = ""
    found = _compared(texts)
    return found if found is None else found is not negated


def _compared(texts: Sequence[str]) -> bool | None:
    if any("$" in one or "`" in one for one in texts):
        return None
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return (texts[1] == "") is (texts[0] == "-z")
    if len(texts) != 3:
        return None
    first, sign, second = texts
    if sign in COMPARED and not {*second} & {*"*?["}:
        return COMPARED[sign](first, second)
    if sign in COUNTED and first.isdigit() and second.isdigit() and len(first + second) < 18:
        return COUNTED[sign](int(first), int(second))
    return None
