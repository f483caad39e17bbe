"""Lines of a training loop with work that few steps or none need, by their text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.steps import COLLECT, HotLine, Lines

COLLECTS = "collects garbage"
LOGARITHMS = (
    *("alpha", "alphas", "beta", "cosh", "density", "det", "i0", "likelihood", "mean", "mel"),
    *("ndtr", "normal", "odds", "p", "pdf", "pi", "pmf", "pred", "prior", "prob", "proba", "q"),
    *("ratio", "scale", "sigma", "sigmoid", "softmax", "spectrogram", "std", "sum", "sumexp"),
    *("temperature", "uniform", "var", "variance", "weight"),
)
"""What `log_` of is a number in names of functions."""
OVERHEAD: Mapping[str, re.Pattern[str]] = {
    COLLECTS: re.compile(r"\bgc\.collect\("),
    "empties the allocator's cache": re.compile(r"\bempty_cache\("),
    "reads values back": re.compile(r"\.(item|cpu|tolist|numpy)\("),
    "logs": re.compile(
        r"\bprint\(|\blogg(er|ing)\.|\blog\.[a-z]|\badd_(scalar|histogram|image|figure)s?\("
        r"|\bwandb\b|\bmlflow\b|set_postfix|\.(write|flush)\(|json\.dump"
        # Not of a number, such as `torch.log(x)`, `x.log()` or `policy.log_prob(x)`.
        r"|(?<!torch)(?<!math)(?<!np)(?<!numpy)\.log\((?!\))|\blog\(f?[\"'{]"
        rf"|\blog_(?!({'|'.join(LOGARITHMS)})(s|\b|_))\w+\("
    ),
    "waits": re.compile(r"\bsleep\(|\.synchronize\("),
    "copies": re.compile(r"\bdeepcopy\("),
}
"""Work that few steps or none need, and the text of a line that does it."""

IN_A_HOOK = "in a hook of the model"
"""Such work of any text, whose steps may all need it."""

IN_A_CALLBACK = "in a callback"
"""The same in a function that a trainer calls at a moment of the step."""
CALLBACK = re.compile(r"(?:\w+\.)*on_(?!\w+_batch_transfer)[a-z]\w*")
"""Its name in Lightning (pytorch/callbacks/callback.py) and transformers (trainer_callback.py).

Lightning's hooks around the transfer of a batch prepare it (core/hooks.py, DataHooks)."""
OF_ANY_TEXT = ("", IN_A_HOOK, IN_A_CALLBACK)
"""What work does by its place alone, whatever its text."""

OF_NO_BATCH = (COLLECTS, "empties the allocator's cache", "logs")
"""What is no work on a batch, even in a line that reads it."""


OF_LAYERS = re.compile(r"modules/\w+\.py:_?\w*forward\b")
"""The innermost frame of a layer that computes (torch/nn/modules)."""
# The other samples of such a line are in the activation functions between the layers.
IN_LAYERS = 0.5

# Collections come after so many new objects, wherever these are made: one line that has most of the
# collections, and works besides, makes the objects.
MOSTLY = 0.6


def makes_garbage(lines: Lines, rank: int) -> tuple[str, int] | None:
    """File and number of the line of the loop whose objects a rank collects; None: there is none.

    A line that collects by itself is none.
    """
    where = mostly_collects(lines, rank)
    if where is None or any(map(asks_to_collect, lines.of(rank, "gc"))):
        return None
    place = (where.file, where.line)
    works = any((one.file, one.line) == place for one in lines.of(rank, "rest"))
    return place if works else None


def collects(text: str) -> bool:
    """Whether a line with this text calls Python's collector of garbage."""
    return OVERHEAD[COLLECTS].search(text) is not None


def asks_to_collect(line: HotLine) -> bool:
    """Whether a line in a collection of garbage asks for it, also by a function of a library."""
    return line.inner == COLLECT or collects(line.text)


def mostly_collects(lines: Lines, rank: int) -> Frame | None:
    """The line with most of a rank's collections, by itself or not; None: there is none."""
    counts, frames = Counter[tuple[str, int]](), dict[tuple[str, int], Frame]()
    for one in lines.of(rank, "gc"):
        counts[one.file, one.line] += one.samples
        frames.setdefault((one.file, one.line), one.frame)
    for place, most in counts.most_common(1):
        return frames[place] if most >= MOSTLY * counts.total() else None
    return None


def does(line: Frame) -> str:
    """What such a line does; empty: it is none."""
    return next((told for told, sign in OVERHEAD.items() if sign.search(line.text)), "")


def of_models(rows: Sequence[HotLine]) -> set[tuple[str, int]]:
    """File and number of the lines in which a model computes that is not trained.

    The work of a frozen teacher, say, belongs to the step, though no optimizer knows it.
    """
    at, in_layers = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for row in rows:
        at[row.file, row.line] += row.samples
        in_layers[row.file, row.line] += row.samples * bool(OF_LAYERS.match(row.inner))
    return {line for line, samples in in_layers.items() if samples >= IN_LAYERS * at[line]}
