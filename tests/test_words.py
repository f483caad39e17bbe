"""The words of the product: plain, active, short, and one way of writing ranks.

Every text that a user can read is held to it: string literals and docstrings, the texts of the
tables, the pages of the documentation and the templates of the report.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).parent.parent
CODE = ("ddoctor", "checks", "probes", "tools")
# Pages that `make docs` writes from the code, whose texts are tested there.
GENERATED = ("docs/causes.md", "docs/evidence.md")
# A record of what was decided and measured, in the words of its day.
RECORDS = ("docs/decisions.md", "docs/measurements")
# Keys of the tables that quote their source, or name it.
QUOTED = frozenset({"source", "sources", "text"})
LONGEST_SENTENCE = 25

BANNED = {
    r"\btold\b": "says, reports, names",
    r"\btells? of\b": "says, reports",
    r"\bsomebody\b|\bsomeone\b": "a user, an administrator, another process",
    r"\bnobody\b": "no process, no rank, nothing",
    r"\bso many\b": "the number",
    r"\b(by|in) turns\b": "alternately",
    r"\bmet (most often )?at\b": "sampled at, seen in",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bbeside\b": "next to, besides, in addition to",
    r"\bin (its |their )?place of\b|\bin place of it\b": "instead of",
    r"\banew\b": "again, from scratch",
    r"\bas it is\b(?! [a-z]+ed\b)": "unchanged",
    r"\b(has|have) to be\b": "must be",
    r"\bof (its|their) own\b": "its own …, separate",
    r"\bours\b": "name what it is",
    r"\bthe one that\b": "name what it is",
    r"\b(comes?|came) to (an?|the|no|\d|\{\})": "reach",
    r"\b(go|goes|went|going) on\b": "continue",
    r"\bare given\b": "the active form",
    r"\bwhoever\b": "name who it is",
    r"\ba look\b|\blooks at the\b": "a sample; attach",
    r"\b(rank|ranks) [\d{}, -]*stands?\b|\bstands? still\b": "is stuck, is blocked",
    r"\blate ranks?\b": "straggler",
    r"\b(is|are) late\b": "arrives last, lags",
    r"\bfix the first first\b": "start with finding 1",
}
# `ranks 0-2, 5`
OTHER_RANKS = re.compile(r"\branks \d+(?:-\d+)?(?:,\d| and \d| to \d|\s*–\s*\d| - \d|\.\.\d)")


@dataclass(frozen=True)
class Text:
    """A text that a user can read, and where it stands."""

    path: str
    line: int
    words: str
    whole_sentences: bool
    """Whether it is prose whose sentences can be counted."""

    def complaints(self) -> Iterator[str]:
        """What is wrong with it, as `path:line: …`."""
        plain = " ".join(self.words.split())
        for pattern, better in BANNED.items():
            for found in re.finditer(pattern, plain, re.IGNORECASE):
                yield self._complaint(f"{found[0]!r} (write: {better})", plain, found.start())
        for found in OTHER_RANKS.finditer(plain):
            yield self._complaint(f"{found[0]!r} (write: ranks 0-2, 5)", plain, found.start())
        if self.whole_sentences:
            for sentence in sentences(plain):
                if (length := len(sentence.split())) > LONGEST_SENTENCE:
                    yield self._complaint(f"a sentence of {length} words", sentence, 0)

    def _complaint(self, what: str, text: str, at: int) -> str:
        return f"{self.path}:{self.line}: {what}: …{text[max(0, at - 30) : at + 60]}…"


def sentences(prose: str) -> list[str]:
    """The sentences of a paragraph; a piece of code counts as one word, a link as its text."""
    prose = re.sub(r"``.+?``|`.+?`", "code", prose)
    prose = re.sub(r"\[([^]]*)]\([^)]*\)", r"\1", prose)
    return re.split(r"(?<=[.!?])\s+", prose)


def test_sentences_end_at_their_stop_and_code_counts_as_a_word() -> None:
    assert sentences("Run `ddoctor run --steps 3 -- x.py`. It stops [itself](a b c).") == [
        "Run code.",
        "It stops itself.",
    ]


@pytest.mark.parametrize(
    "words", ["It is told.", "a fix beside it", "ranks 0,1 wait", "ranks 0 to 3", "word " * 26]
)
def test_the_old_voice_is_found(words: str) -> None:
    assert list(Text("a.py", 1, words, whole_sentences=True).complaints())


@pytest.mark.parametrize("words", ["Besides, ranks 0-2, 5 wait.", "rank 3 is stuck", "word " * 25])
def test_the_plain_voice_is_left_alone(words: str) -> None:
    assert not list(Text("a.py", 1, words, whole_sentences=True).complaints())


def test_texts_are_plain() -> None:
    wrong = [complaint for text in all_texts() for complaint in text.complaints()]
    assert not wrong, f"{len(wrong)} texts are not plain:\n" + "\n".join(wrong)


def all_texts() -> Iterator[Text]:
    """Everything that a user can read."""
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".py":
                yield from python_texts(path)
            elif path.suffix == ".toml":
                yield from toml_texts(path)
            elif path.suffix == ".j2":
                yield Text(name(path), 1, path.read_text(), whole_sentences=False)
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if not name(path).startswith((*RECORDS, *GENERATED)):
            yield from markdown_texts(path)


def name(path: Path) -> str:
    """A file's path from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def python_texts(path: Path) -> Iterator[Text]:
    """Docstrings, and string literals of more than one word."""
    tree = ast.parse(path.read_text())
    parts = {
        id(part)
        for joined in ast.walk(tree)
        if isinstance(joined, ast.JoinedStr)
        for value in joined.values
        for part in ast.walk(value)
        if part is value or isinstance(part, ast.JoinedStr)
    }
    helps = {
        id(keyword.value)
        for keyword in ast.walk(tree)
        if isinstance(keyword, ast.keyword) and keyword.arg == "help"
    }
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in parts or not (words := literal(node)):
            continue
        assert isinstance(node, ast.expr)
        if id(node) in docstrings:
            first, _, rest = words.partition("\n\n")
            yield Text(name(path), node.lineno, first, whole_sentences=True)
            yield Text(name(path), node.lineno, rest, whole_sentences=False)
        elif " " in words.strip():
            yield Text(name(path), node.lineno, words, whole_sentences=id(node) in helps)


def literal(node: ast.AST) -> str:
    """The text of a literal, `{}` for what an f-string fills in; empty: it is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(value) or "{}" for value in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def toml_texts(path: Path) -> Iterator[Text]:
    """The values of a table that are texts, but for its sources."""

    def walk(value: Any, key: str) -> Iterator[str]:
        if key in QUOTED:
            return
        if isinstance(value, dict):
            for inner_key, inner in value.items():
                yield from walk(inner, inner_key)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner, key)
        elif isinstance(value, str):
            yield value

    for words in walk(tomllib.loads(path.read_text()), ""):
        yield Text(name(path), 1, words, whole_sentences=False)


def markdown_texts(path: Path) -> Iterator[Text]:
    """Paragraphs, items and cells of a page as prose; its code as it would be read on a screen."""
    code: list[str] = []
    prose: list[str] = []
    in_code = False
    start = 1

    def paragraph() -> Iterator[Text]:
        if prose:
            yield Text(name(path), start, " ".join(prose), whole_sentences=True)
            prose.clear()

    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            yield from paragraph()
            if in_code:
                yield Text(name(path), start, "\n".join(code), whole_sentences=False)
                code.clear()
            in_code, start = not in_code, number
        elif in_code:
            code.append(line)
        elif line.lstrip().startswith("|"):
            for cell in line.strip("| ").split("|"):
                yield Text(name(path), number, cell, whole_sentences=True)
        else:
            new = not line.strip() or re.match(r"\s*([-*]|\d+\.|#+) ", line)
            if new:
                yield from paragraph()
            if not prose:
                start = number
            if line.strip():
                prose.append(re.sub(r"^\s*([-*]|\d+\.|#+) ", "", line))
    yield from paragraph()
