"""Reads shell scripts as far as this is possible without running them.

Variables and arrays that the script sets itself are put in, and functions run where lines call
them; loops are read as if each of their lines ran once. What a branch sets holds in it, and after
it only where its condition is known. What only a shell can know (``$(…)``, an unset variable) stays
as written.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.launch import files
from ddoctor.launch.shell_branches import SIGNS, Branches, State
from ddoctor.launch.shell_functions import Functions, Rows, Simple, plain_header
from ddoctor.launch.words import Command, Word

MOST_LINES = 20_000
MOST_CONTINUED = 1_000
"""Lines that continue one."""
MOST_NESTED = 4
"""Levels of ``$(…)`` within each other."""
MOST_SOURCED = 3
"""Levels of scripts that read one another."""
# $(…), <(…) and >(…) are one word, whatever is in them.
# Blanks in these divide no words; of ${NAME:?complaint}, too.
SUBSTITUTION = re.compile(
    r"\$\(\([^()]{0,2000}\)\)|[$<>]\([^()]{0,2000}\)|`[^`]{0,2000}`|\$\{\w+:?\?[^{}\"']{0,200}\}"
)
MASK = re.compile(r"\x00(\d+)\x00")
# A backslash that does not end its line continues nothing.
BROKEN = re.compile(r"\\[ \t]+(?:#.*)?$")
# What quotes, and what a quote would not open in: a comment, and an escaped character.
QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?:^|(?<=\s))\#.*|['\"]")
CLOSES = {"'": re.compile(r"[^']*'"), '"': re.compile(r'(?:\\.|[^"\\])*"')}
MOST_QUOTED = 200
"""Lines that one quote holds together."""
OPERATORS = re.compile(r"[;&|()<>]+")
# The 2 of `2> log`; in `--epochs 2 > log`, it is a value.
DESCRIPTOR = re.compile(r"(?<=\s)\d(?=[<>])")
ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w{0,199})=(?P<value>.*)", re.DOTALL)
# $NAME, ${NAME}, ${NAME:-default}, ${NAME:?complaint}; $(which program).
VARIABLE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*|[0-9@*#])"
    r"|\{(?P<braced>[A-Za-z_]\w*|[0-9@*#])(?::?(?:-(?P<default>[^{}]*)|\?[^{}]*))?\})"
)
# $@, $*, "${@:2}"
ARGUMENTS = re.compile(r"\$(?:[@*]|\{[@*](?::(?P<first>[1-9]))?\})")
# NAME=(…), NAME+=(…); "${NAME[@]}", ${NAME[*]}, ${NAME[@]+"${NAME[@]}"}.
ARRAY = re.compile(r"(?P<name>[A-Za-z_]\w{0,199})(?P<more>\+?)=\((?P<first>.*)", re.DOTALL)
ALL_OF_ARRAY = re.compile(
    r"\$\{(?P<name>[A-Za-z_]\w*)\[[@*]\](?::?[-+](?:\$\{(?P=name)\[[@*]\]\})?)?\}"
)
OF_COMMANDS = re.compile(r"-[a-z]*c")
"""An option of a shell by which it gets commands: ``-c``, ``-lc``."""
# In double quotes, what a task has as a variable is put in before the task starts.
EARLY = re.compile(r'\s-[a-z]*c\s+"(?:[^"\\]|\\.)*(?<!\\)\$\{?SLURM_(?:NODEID|PROCID)', re.DOTALL)
OPENS_ARRAY = re.compile(r"(?:^|[\s;])[A-Za-z_]\w{0,199}\+?=\((?P<rest>.*)")
WHICH = re.compile(r"\$\((?:which|command -v) ([\w./-]+)\)|`(?:which|command -v) ([\w./-]+)`")
# The folder of the script: $(dirname "$0"), $(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd).
OWN_FOLDER = re.compile(
    r"\$\((?:cd [\"']?\$\()?dirname (?:-- )?[\"']?\$(?:0|\{BASH_SOURCE(?:\[0\])?\}|\{0\})[\"']?\)"
    r"(?:[\"']? *(?:&&|;) *pwd(?: -P)?\))?"
)
# $((A * B))
ARITHMETIC = re.compile(r"\$\(\(\s*(\$?\{?\w+\}?)\s*([*+-])\s*(\$?\{?\w+\}?)\s*\)\)")
UNKNOWN = re.compile(r"\$[\w{(@*#]|`")
HERE = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
KEYWORDS = ("then", "do", "else", "if", "elif", "while", "until", "!", "{", "exec", "time", "nohup")
ENDS = (*SIGNS, "fi", "done", "esac", "}", "case", "for", "function", "echo", "printf", "cat")
DIRECTIVE = re.compile(r"#SBATCH\s+(?P<words>-.*)")
SETTERS = ("export", "declare", "local", "readonly", "typeset")


@dataclass(kw_only=True)
class Script:
    """A shell script that is being read."""

    file: str
    arguments: Sequence[str] = ()
    variables: dict[str, Setting] = field(default_factory=dict)
    """At first those that the script gets."""
    exported: set[str] = field(default_factory=set)
    """Variables that the script's commands get."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Variables that a scheduler sets."""
    folder: Path | None = None
    """That of the command, in which files are that it reads with ``source``; None: they are not
    read."""
    exports_all: bool = False
    """Whether it exports each variable that it sets, ``set -a``."""
    nested: int = 0
    """Number of scripts that read this one with ``source``."""
    rows: Sequence[int] = ()
    """The lines of the file in which those of the text are; empty: the same."""
    unless: str = ""
    """What may replace defaults that the text holds already."""
    broken: list[Word] = field(default_factory=list)
    """Lines whose last backslash a blank or a comment follows."""
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    branches: Branches = field(default_factory=Branches)
    functions: Functions = field(default_factory=Functions)
    _hidden: dict[str, Setting | None] = field(default_factory=dict)
    """What the variables of the function at hand were before it."""
    _loops: int = 0
    _early: bool = False
    """Whether the line at hand puts numbers of tasks into a text of commands."""
    _outer: tuple[int, int] = (0, 0)
    """The branches and loops around the call of the function at hand."""

    @property
    def conditional(self) -> list[Word]:
        """What it sets for its commands only under conditions that are not known."""
        return self.branches.conditional

    @property
    def _state(self) -> State:
        return State(variables=self.variables, exported=self.exported, arrays=self.arrays)

    def commands(self, text: str) -> Iterator[Command]:
        """The simple commands of the script, in order.

        Those that nothing is known to run come first: of other branches, and of functions that no
        line calls.
        """
        every = [*self._read(text)]
        yield from () if self.nested else self._unused()
        yield from (replace(one, beside=False) for one, runs in every if not runs)
        yield from (one for one, runs in every if runs)

    def _unused(self) -> Iterator[Command]:
        """The commands of functions that no line calls; what they set counts for them alone."""
        bodies = self.functions.unused
        apart = replace(
            self,
            variables={**self.variables},
            exported={*self.exported},
            branches=Branches(),
            arguments=(),
        )
        for one in bodies:
            yield from (replace(command, beside=False) for command in apart._run(one))

    def _read(self, text: str) -> Iterator[tuple[Command, bool]]:
        """Each with whether it may run."""
        for rows in _lines(text):
            lines = [(self._line(number), line) for number, line in rows]
            for number, line in lines:
                if BROKEN.search(line) and not line.lstrip().startswith("#"):
                    self.broken.append(Word(text=line.strip(), file=self.file, line=number))
            self._early = EARLY.search("\n".join(line for _, line in lines)) is not None
            for command in _simple(lines):
                if not self.functions.keeps(command):
                    for one in self._run(command):
                        yield one, not self.branches.skips
        self.branches.finish(self._state)

    def _run(self, command: Simple) -> Iterator[Command]:
        words, beside = command
        self.branches.before(words[0][0] if words else "", self._state)
        yield from self._command([*self._expanded(words)], beside=beside)

    def _line(self, number: int) -> int:
        return self.rows[min(number, len(self.rows)) - 1] if self.rows else number

    def _command(self, words: list[Word], *, beside: bool) -> Iterator[Command]:
        words = self.branches.read(words, self._state)
        while words and words[0].text in KEYWORDS:
            self._loops += words[0].text == "do"
            del words[0]
        setter = words[0].text if words and words[0].text in SETTERS else ""
        if setter:
            words = [*dropwhile(lambda word: word.text.startswith("-"), words[1:])]
        if words and (array := ARRAY.fullmatch(words[0].text)):
            self._set_array(array, words)
            return
        own: dict[str, Setting] = {}
        while words and (match := ASSIGNMENT.fullmatch(words[0].text)):
            own[match["name"]] = words[0].setting(match["name"], match["value"])
            del words[0]
        if setter == "export":
            # `export NAME` passes on a variable that was set before.
            self.exported.update(own, [word.text for word in words])
        if self.exports_all:
            self.exported.update(own)
        if setter == "local":
            self._hide(own)
        if not words or setter:
            self.variables |= own
        elif self.functions.may_call(words[0].text) and not self.branches.skips:
            yield from self._call(words, own, beside=beside)
        elif words[0].text == "shift":
            self._shift(words[1].text if len(words) > 1 else "1")
        elif words[0].text in ("source", ".") and len(words) > 1:
            self._source(words[1].text)
        elif words[0].text == "set" and len(words) == 2:
            self.exports_all = {"-a": True, "+a": False}.get(words[1].text, self.exports_all)
        elif words[0].text in ENDS:
            self._loops -= words[0].text == "done"
        else:
            passed = [one for name, one in self.variables.items() if name in self.exported]
            variables = (*passed, *own.values())
            yield Command(words=tuple(words), variables=variables, beside=beside)

    def _call(
        self, words: Sequence[Word], own: Mapping[str, Setting], *, beside: bool
    ) -> Iterator[Command]:
        """Run a function, with the words after its name as its arguments."""
        name, arguments, hidden = words[0].text, self.arguments, self._hidden
        outer, self._outer = self._outer, (len(self.branches.open), self._loops)
        self.functions.called.append(name)
        self.functions.within.append(name)
        self.arguments, self._hidden = [word.text for word in words[1:]], {}
        self._hide(own)
        self.variables |= own
        self.exported.update(own)
        for command, apart in self.functions.bodies[name]:
            for one in self._run((command, apart or beside)):
                if not self.branches.skips:
                    yield one
        self.branches.finish(self._state)
        for inner, before in self._hidden.items():
            self.variables.pop(inner, None)
            if before is not None:
                self.variables[inner] = before
        self.functions.within.pop()
        self.arguments, self._hidden, self._outer = arguments, hidden, outer

    def _hide(self, own: Mapping[str, Setting]) -> None:
        """Keep what variables were outside of the function at hand."""
        for name in own:
            self._hidden.setdefault(name, self.variables.get(name))

    def _shift(self, count: str) -> None:
        """Drop the first arguments, where every run does so just once."""
        within = (len(self.branches.open), self._loops)
        if count.isdigit() and within == self._outer:
            self.arguments = self.arguments[int(count[:3]) :]

    def _set_array(self, array: re.Match[str], words: Sequence[Word]) -> None:
        """Keep the elements, which are the words after the first one."""
        before = self.arrays.get(array["name"], []) if array["more"] else []
        self.arrays[array["name"]] = [*before, *words[1:]]

    def _source(self, name: str) -> None:
        """Take the variables that a file sets which this script reads, by a relative path."""
        if self.folder is None or self.nested >= MOST_SOURCED or os.path.isabs(name):
            return
        for folder in (self.folder, self.folder / os.path.dirname(self.file)):
            if files.is_there(folder / name):
                with suppress(DoctorError):
                    inner = replace(
                        self, file=name, nested=self.nested + 1, broken=[], branches=Branches()
                    )
                    for _ in inner.commands(files.text(folder / name, name)):
                        pass
                return

    def _expanded(self, words: Sequence[tuple[str, Rows]]) -> Iterator[Word]:
        """The words with variables put in; one that holds a command or options becomes several."""
        before = ""
        for text, rows in words:
            if every := ARGUMENTS.fullmatch(text):
                given = self.arguments[int(every["first"] or 1) - 1 :]
                yield from (Word(text=one, file=self.file, line=rows[0]) for one in given)
                continue
            array = ALL_OF_ARRAY.fullmatch(text)
            # As the text of commands, an array is one word: bash -c "${RUN[*]}".
            apart = "[*]" not in text or OF_COMMANDS.fullmatch(before) is None
            if array is not None and array["name"] in self.arrays and apart:
                yield from self.arrays[array["name"]]
                continue
            word = self._word(text, rows)
            parts = word.text.split()
            several = len(parts) > 1 and VARIABLE.fullmatch(text) and before != "-c"
            if several and (any(part.startswith("-") for part in parts) or not before):
                yield from (replace(word, text=part) for part in _unquoted(word.text))
            else:
                yield word
            before = text

    def _word(self, text: str, rows: Rows) -> Word:
        found = WHICH.sub(lambda match: match[1] or match[2], text)
        found = OWN_FOLDER.sub(os.path.dirname(self.file) or ".", found)
        found = ARITHMETIC.sub(self._computed, found)
        found = ALL_OF_ARRAY.sub(self._joined, found)
        found = VARIABLE.sub(self._value, found)
        resolved = UNKNOWN.search(found) is None
        return Word(
            text=found,
            file=self.file,
            line=rows[0],
            resolved=resolved,
            rows=rows,
            unless=", ".join(self._replaceable(text)),
            early=self._early,
        )

    def _replaceable(self, text: str) -> Iterator[str]:
        """The defaults in it that a variable of the caller's would replace."""
        put_in = self.unless.split(", ") if self.unless else []
        yield from (one for one in put_in if one.rpartition(" ")[2] in text)
        for match in VARIABLE.finditer(text):
            name = match["plain"] or match["braced"]
            known = self.variables.get(name)
            if known is not None and known.file and known.origin:
                yield known.origin
            elif known is None and match["default"] and not name.isdigit():
                yield f"{name} replaces {match['default']}"

    def _joined(self, match: re.Match[str]) -> str:
        """The elements of an array that is a part of a word, if they are known."""
        elements = self.arrays.get(match["name"])
        return match[0] if elements is None else " ".join(word.text for word in elements)

    def _computed(self, match: re.Match[str]) -> str:
        """The product or sum of known numbers, else the expression without blanks."""
        first, sign, second = (self._known(part) for part in match.groups())
        if first.isdigit() and second.isdigit() and len(first + second) < 12:
            a, b = int(first), int(second)
            return str({"*": a * b, "+": a + b, "-": a - b}[sign])
        return "".join(match[0].split())

    def _known(self, name: str) -> str:
        name = name.removeprefix("$").strip("{}")
        return self.variables[name].value if name in self.variables else self.given.get(name, name)

    def _value(self, match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if name.isdigit() and 0 < int(name) <= len(self.arguments):
            return self.arguments[int(name) - 1]
        if name in ("@", "*"):
            return " ".join(self.arguments)
        if name in self.variables:
            return self.variables[name].value
        if name in self.given:
            return self.given[name]
        # A variable of the caller's may replace a default, and mostly none does.
        default: str | None = match["default"]
        return match[0] if default is None else default


def _unquoted(text: str) -> list[str]:
    return [word for word, _ in _split([(0, text)])]


def directives(text: str, file: str) -> Iterator[Word]:
    """The options of a scheduler that stand in comments at the top of a script."""
    for number, line in enumerate(text.splitlines()[:MOST_LINES], 1):
        if match := DIRECTIVE.match(line):
            for word in match["words"].partition(" #")[0].split():
                yield Word(text=word, file=file, line=number)
        elif line.strip() and not line.startswith("#"):
            # Slurm reads none after the first command.
            return


def _lines(text: str) -> Iterator[list[tuple[int, str]]]:
    """Each line with those that continue it, and their numbers; without here-documents."""
    held: list[tuple[int, str]] = []
    until = quote = ""
    every = text.splitlines()[:MOST_LINES]
    for number, line in enumerate(every, 1):
        if until:
            until = "" if line.strip() == until else until
            continue
        within = quote
        quote = _open_quote(line, quote)
        if quote and not within and not _closes(every[number : number + MOST_QUOTED], quote):
            quote = ""
        goes_on = line.endswith("\\") and len(held) < MOST_CONTINUED
        in_array = not quote and len(held) < MOST_QUOTED
        in_array = in_array and _open_array([*(one for _, one in held), line])
        # Within quotes, `_pieces` joins the lines.
        held.append((number, line.removesuffix("\\") if goes_on and not quote else line))
        if goes_on or quote or in_array:
            continue
        if match := HERE.search(line):
            until = match[1]
        yield held
        held = []
    if held:
        yield held


def _open_quote(line: str, quote: str) -> str:
    """The quote that a line leaves open; empty: none. ``quote``: the one in which it begins."""
    if quote:
        end = CLOSES[quote].match(line)
        if end is None:
            return quote
        line = line[end.end() :]
    # Only at the end is a quote alone: it holds what follows.
    return next((one for one in QUOTED.findall(line) if one in CLOSES), "")


def _open_array(lines: Sequence[str]) -> bool:
    """Whether the lines leave an array open: ``ARGS=(`` without its last bracket."""
    opened = OPENS_ARRAY.search(QUOTED.sub("", lines[0]))
    if opened is None:
        return False
    text = "\n".join([opened["rest"], *(QUOTED.sub("", line) for line in lines[1:])])
    return text.count(")") <= text.count("(")


def _closes(lines: Sequence[str], quote: str) -> bool:
    """Whether a line leaves no quote open that an earlier one has opened."""
    for line in lines:
        quote = _open_quote(line, quote)
        if not quote:
            return True
    return False


def _pieces(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[Rows, str]]:
    """Lines, with those that a quote joins as one; and the number of each."""
    quote, text, joined = "", "", False
    rows: list[int] = []
    for number, line in lines:
        quote = _open_quote(line, quote)
        rows += [number] * (not joined)
        # A shell that gets a text in single quotes joins its lines itself.
        joined = quote == '"' and line.endswith("\\")
        text += line.removesuffix("\\") if joined else line
        if quote and not joined:
            text += "\n"
        elif not quote:
            yield tuple(rows), text
            text, rows = "", []
    if rows:
        yield tuple(rows), text


def _simple(lines: Sequence[tuple[int, str]]) -> Iterator[Simple]:
    """The simple commands of a line, as words without quotes, with their lines.

    Each with whether the shell continues without waiting for its end.
    """
    words: list[tuple[str, Rows]] = []
    skip = tests = False
    within = 0
    for text, rows in _split(lines):
        # In [[ a && b ]], operators are words.
        tests = text == "[[" or (tests and text != "]]")
        if within or (array := ARRAY.fullmatch(text)):
            if not within and array is not None:
                begin = array.start("first")
                words.append((text[:begin], rows))
                within, text = 1, text[begin:]
            within = max(0, within + text.count("(") - text.count(")"))
            text = text if within else text.removesuffix(")")
            words += [(text, rows)] * bool(text)
        elif tests or not OPERATORS.fullmatch(text):
            words += [(text, rows)] * (not skip)
            skip = False
        elif "<" in text or ">" in text:
            # A file that the command reads or writes.
            skip = True
        else:
            yield words, text == "&"
            if text in SIGNS:
                yield [(text, rows)], False
            words, skip = [], False
    yield words, False


def _split(lines: Sequence[tuple[int, str]]) -> list[tuple[str, Rows]]:
    """The words of lines, each with its line, or those of its text."""
    found: list[tuple[str, Rows]] = []
    for rows, text in _pieces(lines):
        masked: list[str] = []
        try:
            words = _words(text, masked)
        except ValueError:
            # A quote that nothing closes.
            words = text.split()
        at = 0
        for word in words:
            whole = MASK.sub(lambda match, masked=masked: masked[int(match[1])], word)  # type: ignore[misc]
            count = whole.count("\n")
            at = min(at, len(rows) - 1)
            found.append((whole, rows[at : at + count + 1]))
            at += count
    return found


def _words(line: str, masked: list[str]) -> list[str]:
    line = plain_header(line)
    for _ in range(MOST_NESTED):
        line, changed = SUBSTITUTION.subn(lambda match: _mask(match[0], masked), line)
        if not changed:
            break
    lexer = shlex.shlex(DESCRIPTOR.sub("", line), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return [*lexer]


def _mask(text: str, masked: list[str]) -> str:
    masked.append(MASK.sub(lambda match: masked[int(match[1])], text))
    return f"\x00{len(masked) - 1}\x00"
