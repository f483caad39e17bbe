"""For which batch a learning rate was chosen, where a text of the project says so.

Comments next to the rate, the help of its option, and a README name a rate, a batch of all GPUs
(or of one GPU, and their number), and that the one was chosen for the other.
"""

# Above 150 lines: comments, docstrings, help and READMEs say the same in their own ways.

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddoctor.errors import DoctorError
from ddoctor.evidence.launch import Setting
from ddoctor.launch import files
from ddoctor.launch.option_source import Options

READMES = ("README.md", "README.rst", "README.txt", "README", "readme.md")
NUMBERS = {
    "one": 1, "single": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "sixteen": 16,
}  # fmt: skip
COUNT = rf"(?P<count>\d{{1,4}}|{'|'.join(NUMBERS)})"
BATCH = r"(?:mini-?)?batch(?:[ -]?size)?"
WHOLE = re.compile(
    rf"\b(?:total|global|effective|overall|whole) {BATCH}\b(?: ?(?:of|is|was|:|=))*"
    r"(?: [\d x×*]+ ?=)? ?(?P<batch>\d{1,6})\b",
    re.IGNORECASE,
)
EACH = re.compile(rf"\b{BATCH}(?: ?(?:of|is|was|:|=|--batch-size))* ?(?P<batch>\d{{1,6}})\b", re.I)
GPUS = re.compile(
    rf"\b{COUNT}(?: ?[x×])?[ -](?:\w+ )?(?:gpus?|cards?|[avhp]\d00s?|rtx \w+|t4s?|l40s?)\b",
    re.IGNORECASE,
)
RATE = re.compile(
    r"\b(?:lr|learning[ _-]rate|rate)\b ?(?:of|is|was|:|=)? ?"
    r"(?P<rate>\d{0,6}\.?\d{1,12}(?:e-?\d{1,3})?)\b",
    re.IGNORECASE,
)
OF_RATE = re.compile(r"\b(?:lr|learning[ _-]rate|rate)\b", re.IGNORECASE)
CHOSEN = re.compile(
    r"\b(?<!fine-)(?<!fine )(?:tuned|searched|swept|chosen|selected|picked|calibrated|belongs?)\b",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"[.;!?](?:\s|$)")
ADAPTS = re.compile(
    r"\b(?:scal(?:e|es|ed|ing)|linear(?:ly)?|sqrt|square root|keep|multipl\w+|divid\w+|adjust\w*)\b"
    r"|\bper[ -](?:gpu|device|rank|process|card)\b|1/N",
    re.IGNORECASE,
)
"""Words of a text that also says what changes with the number of GPUs."""
KEY = re.compile(
    r"""(?<![a-z_])(?:(?:base|init|initial|max|peak)_)?(?:learning_rate|lr|rate)["']?"""
    r"""\s*(?:[:=]|:\s*\w{1,20}\s*=|,[^#=]{0,80}(?:=[^#=]{1,40})?\bdefault=)\s*"""
    r"""(?P<rate>\d{0,6}\.?\d{1,12}(?:e-?\d{1,3})?)""",
    re.IGNORECASE,
)
"""An assignment, a keyword, a key, a field, or an option with its default."""
MARKS = re.compile(r"[`*_~>#]+")
BESIDE = "rate, "
"""What a comment after a rate, or the help of its option, need not name."""
LONGEST = 2000
"""Characters of a comment or a paragraph."""
MOST_CHARACTERS = 100_000
"""Of a README."""
NAMES = ("lr", "learning_rate", "rate")


@dataclass(frozen=True)
class Text:
    """A comment, a paragraph, or another text that is read as a whole."""

    text: str
    file: str
    line: int
    rate: str = ""
    """The rate next to it; empty: none."""
    above: bool = False
    """Whether that stands in the next line, and the text does not name it."""


def of_file(text: str, name: str) -> Iterator[Setting]:
    """What the comments of a file of settings say."""
    if "batch" in text.lower():
        yield from _told(_comments(text.splitlines(), name))


def of_source(tree: ast.Module, options: Options, name: str) -> Iterator[Setting]:
    """What the first docstring of a script, and the help of its options, say."""
    texts = [
        Text(BESIDE + row.help, name, row.line, row.default or "")
        if row.key in NAMES
        else Text(row.help, name, row.line)
        for row in options.rows
        if row.help
    ]
    if document := ast.get_docstring(tree):
        texts.append(Text(document, name, 1))
    yield from _told(texts)


def of_readme(folder: Path) -> Iterator[Setting]:
    """What the README in the folder of the command says."""
    for name in READMES:
        if files.is_there(folder / name):
            try:
                text = files.text(folder / name, name)
            except DoctorError:
                return
            yield from _told(_paragraphs(text[:MOST_CHARACTERS], name))
            return


def _comments(lines: Sequence[str], name: str) -> Iterator[Text]:
    """Lines of comments, as far as they follow each other, and those after a value."""
    run: list[str] = []
    for number, line in enumerate(lines, 1):
        before, mark, after = line.partition("#")
        key = KEY.search(before)
        rate = key["rate"] if key is not None else ""
        if mark and not before.strip():
            run.append(after)
            continue
        if run:
            text = " ".join(run)
            above = bool(rate) and not OF_RATE.search(text)
            yield Text(BESIDE * above + text, name, number - len(run), rate, above=above)
            run = []
        if mark:
            yield Text(BESIDE + after if rate else after, name, number, rate)
    if run:
        yield Text(" ".join(run), name, len(lines) - len(run) + 1)


def _paragraphs(text: str, name: str) -> Iterator[Text]:
    """The paragraphs; one that ends with a colon, its block, and what follows are one."""
    number, parts = 1, list[str]()
    first = 1
    for part in re.split(r"(\n\s*\n)", text):
        if part.strip():
            opens = bool(parts) and (
                parts[-1].rstrip().endswith(":") or (len(parts) > 1 and parts[-1][:1] in " \t`")
            )
            if parts and not opens:
                yield Text(" ".join(parts), name, first)
                parts = []
            first = number if not parts else first
            parts.append(part)
        number += part.count("\n")
    if parts:
        yield Text(" ".join(parts), name, first)


def _told(texts: Iterator[Text] | Sequence[Text]) -> Iterator[Setting]:
    """The batch of each text that says for which one its rate is, and then the rate."""
    for one in texts:
        plain = " ".join(MARKS.sub(" ", one.text[:LONGEST].replace("_", " ")).split())
        batch, rate = _batch(plain, beside=bool(one.rate) and not one.above), _rate(plain, one.rate)
        if batch and rate and not ADAPTS.search(plain):
            for name, value in (("made-for.samples", str(batch)), ("made-for.rate", rate)):
                yield Setting(name=name, value=value, file=one.file, line=one.line)


def _rate(plain: str, beside: str) -> str:
    found = {float(match["rate"]) for match in RATE.finditer(plain)}
    if beside:
        own = _number(beside)
        return beside if own is not None and found <= {own} else ""
    return str(found.pop()) if len(found) == 1 else ""


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _batch(plain: str, *, beside: bool) -> int | None:
    """The samples of all GPUs; None: the text does not say for how many the rate was chosen."""
    if not OF_RATE.search(plain) or not (beside or any(map(_chooses, SENTENCE.split(plain)))):
        return None
    whole = {int(match["batch"]) for match in WHOLE.finditer(plain)}
    if whole:
        return whole.pop() if len(whole) == 1 else None
    each = {int(match["batch"]) for match in EACH.finditer(plain)}
    counts = {match["count"].lower() for match in GPUS.finditer(plain)}
    if len(each) != 1 or len(counts) != 1:
        return None
    count, batch = counts.pop(), each.pop()
    number = NUMBERS.get(count) or int(count)
    # "8 GPUs, 16 each, for a batch of 128": it is that of all GPUs.
    numbers = {int(one) for one in re.findall(r"\b\d{1,6}\b", plain)}
    is_whole = batch % number == 0 and batch // number in numbers - {batch, number}
    return batch if is_whole else batch * number


def _chooses(sentence: str) -> bool:
    """Whether it says that a rate was chosen for a batch."""
    both = OF_RATE.search(sentence) and "batch" in sentence.lower()
    return bool(both) and CHOSEN.search(sentence) is not None
