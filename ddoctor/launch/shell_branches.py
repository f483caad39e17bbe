"""Which branch of a shell script's ``if``, ``case`` or ``&&`` runs, and what it leaves behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne

from ddoctor.evidence.launch import Setting
from ddoctor.launch.words import Word

OPEN = ("[", "[[", "test")
CLOSE = ("]", "]]")
LEADING = ("if", "then", "elif", "else", "fi", "esac", ";;", "do", "{", "!")
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
SIGNS = ("&&", "||", ";;")
"""Operators that decide what runs; each comes as a separate command."""
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
    """An ``if``, a ``case``, or a command after ``[ … ] &&`` that is open."""

    before: State
    chain: bool = False
    """Whether it is of ``&&`` or ``||``."""
    subject: str | None = None
    """What a ``case`` compares; None: it is none."""
    patterns: list[str] | None = None
    """The patterns of an arm that are being read; None: none are."""
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

    _test: list[Word] = field(default_factory=list)
    """The test that came last; empty: another command did."""
    _linked: bool = False
    """Whether ``&&`` or ``||`` came last."""

    @property
    def skips(self) -> bool:
        """Whether the line at hand is known not to run."""
        return any(one.runs is False and one.condition is None for one in self.open)

    def finish(self, state: State) -> None:
        """End what the last command of a text or a function leaves open."""
        self.before("", state, last=True)

    def before(self, first: str, state: State, *, last: bool = False) -> None:
        """See the first word of a command, before variables are put into the others."""
        if first in SIGNS[:2] or not (first or last):
            return
        if self.open and self.open[-1].chain and not self._linked:
            self._end(state)
            self._leave(self.open.pop(), state)
        self._linked = False
        if first == "elif" and self.open:
            self._end(state)

    def read(self, words: Sequence[Word], state: State) -> list[Word]:
        """See one command, before it counts; what is left of it without patterns of a ``case``."""
        begins = words[0].text if words else ""
        inner = self.open[-1] if self.open else None
        if begins in SIGNS[:2]:
            self._link(begins, state)
            return []
        if inner is not None and inner.patterns is not None and begins != "esac":
            return self._arm(inner, words, state)
        if begins not in LEADING and inner is not None and inner.condition is not None:
            # A second command of the condition: after `&&`, `||`, or in a pipe.
            inner.condition = []
        self._test = [*words] if begins in (*OPEN, "!") else self._test * (not words)
        for at, word in enumerate(words):
            if word.text in ("if", "elif"):
                self._begin(word.text, words[at + 1 :], state)
            elif word.text == "case":
                return self._begin_case([*words[at + 1 :]], state)
            elif word.text in LEADING and self.open:
                self._continue(word.text, state)
                continue
            break
        return [*words]

    def _link(self, sign: str, state: State) -> None:
        """See ``&&`` or ``||``: what follows runs by the test before it."""
        inner = self.open[-1] if self.open else None
        if inner is not None and inner.condition is not None:
            inner.condition = []
        elif inner is not None and inner.chain:
            if sign == "||":
                self._end(state)
                inner.runs = _else(inner)
        elif self._test and len(self.open) < MOST_BRANCHES:
            truth = _truth(self._test)
            runs = truth if truth is None or sign == "&&" else not truth
            self.open.append(_Branch(before=state.copy(), chain=True, runs=runs))
        self._linked = True

    def _begin_case(self, words: list[Word], state: State) -> list[Word]:
        if len(self.open) >= MOST_BRANCHES or len(words) < 2:
            return []
        subject = words[0].text
        self.open.append(_Branch(before=state.copy(), subject=subject, patterns=[]))
        return self._arm(self.open[-1], words[2:], state)

    def _arm(self, inner: _Branch, words: Sequence[Word], state: State) -> list[Word]:
        """Read the patterns of an arm; what follows the last one is its first command."""
        for at, word in enumerate(words):
            text = word.text
            inner.patterns = [*(inner.patterns or ()), text.removesuffix(")").lstrip("(")]
            if text.endswith(")"):
                inner.runs = _decided(inner, _matches(inner.subject or "", inner.patterns))
                inner.patterns = None
                return [*words[at + 1 :]]
        return []

    def _begin(self, word: str, condition: Sequence[Word], state: State) -> None:
        if word == "if" and len(self.open) < MOST_BRANCHES:
            self.open.append(_Branch(before=state.copy(), condition=[*condition]))
        elif word == "elif" and self.open:
            self.open[-1].condition = [*condition]

    def _continue(self, word: str, state: State) -> None:
        inner = self.open[-1]
        if word == "then":
            inner.runs = _decided(inner, _truth(inner.condition or ()))
            inner.condition = None
        elif word == "else":
            self._end(state)
            inner.runs = _else(inner)
        elif word == ";;" and inner.subject is not None:
            self._end(state)
            inner.runs, inner.patterns = None, []
        elif word in ("fi", "esac"):
            if inner.patterns is None:
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


def _decided(inner: _Branch, truth: bool | None) -> bool | None:
    """Whether a branch runs with this condition, after those before it."""
    if inner.taken is not None:
        return False
    return None if truth and inner.may_run else truth


def _matches(subject: str, patterns: Sequence[str]) -> bool | None:
    """Whether a ``case`` takes an arm; None: it is not known."""
    if "*" in patterns:
        return True
    if any("$" in one or "`" in one for one in (subject, *patterns)):
        return None
    return any(fnmatchcase(subject, one) for one in patterns)


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
    if {"&&", "||"} & {*texts}:
        return _joined(texts, negated=negated)
    if len(texts) == 2 and texts[0] == "-z" and UNSET.fullmatch(texts[1]):
        texts[1] = ""
    found = _compared(texts)
    return found if found is None else found is not negated


def _joined(texts: Sequence[str], *, negated: bool) -> bool | None:
    """Whether ``[[ a && b ]]`` is true; with both signs it is not known."""
    signs = {"&&", "||"} & {*texts}
    if len(signs) > 1 or "(" in texts:
        return None
    (sign,) = signs
    parts: list[list[str]] = [[]]
    for text in texts:
        if text == sign:
            parts.append([])
        else:
            parts[-1].append(text)
    truths = [_compared(one) for one in parts]
    decides = sign == "||"
    found = decides if decides in truths else None if None in truths else not decides
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
