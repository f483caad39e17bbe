"""`dcgmi diag`: its table of tests, as DCGM 1 to 4 print it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddoctor.evidence.printed import DiagnosticFailure, GpuDiagnostic
from ddoctor.reading.machine.gpu_diagnostic import LONGEST_TEXT, MOST_FAILURES, of_settings
from ddoctor.reading.machine.kind import Kind

# dcgmi/Diag.cpp of DCGM: two columns, and a text goes on below in pieces of 45 characters.
PIECE = 45
ROW = re.compile(r"^\| (?P<name>.{25}) \|(?P<info>.{1,200}?)\|?$")
HEAD = re.compile(r"^\| Diagnostic {1,40}\| Result {1,80}\|$")
# Of DCGM 1 to 3: `Fail`, `Fail - All`, `Fail - GPUs: 0, 2`; of DCGM 4: `Fail`, and `GPU0: Fail`.
STATUS = re.compile(
    r"(?:(?P<entity>[A-Za-z]{1,20})(?P<number>\d{1,9}): )?"
    r"(?P<result>Pass|Fail|Warn|Skip)(?: - (?:All|GPUs?:? ?(?P<gpus>[\d, .]{1,400})))?"
)
SAID = re.compile(r"(?:Error|Warning)(?:: GPU(?P<gpu>\d{1,9}))?")
NOTED = re.compile(r"Info\b")
OF_GPU = re.compile(r"\bGPU (\d{1,3})\b")


@dataclass
class _Text:
    """What the table says of a test."""

    gpu: int | None
    pieces: list[str] = field(default_factory=list)

    @property
    def whole(self) -> str:
        """The text without the breaks of its lines."""
        return " ".join("".join(self.pieces).split())[:LONGEST_TEXT]


@dataclass
class _Test:
    """One test of the table."""

    name: str
    failed: bool = False
    gpus: list[int] = field(default_factory=list)
    """Those that failed it, as far as the table names them."""
    texts: list[_Text] = field(default_factory=list)

    def result(self, told: re.Match[str]) -> None:
        """Take a result: of the test, or of a GPU."""
        if told["result"] != "Fail":
            return
        # DCGM 4 calls a GPU failed where the whole test is a warning.
        if told["entity"] is None:
            self.failed = True
        elif told["entity"] == "GPU" and self.failed:
            self.gpus.append(int(told["number"]))
        # A list that is too long for its column ends with dots, perhaps within a number.
        self.gpus += map(int, re.findall(r"\b\d{1,3}(?![\d.])", told["gpus"] or ""))

    def failures(self) -> Iterator[DiagnosticFailure]:
        """A row for each GPU that failed it."""
        if not self.failed:
            return
        gpus: Sequence[int | None] = self.gpus or (None,)
        for gpu in gpus:
            of_gpu = [one.whole for one in self.texts if gpu is None or one.gpu in (None, gpu)]
            text = next(iter(of_gpu), "")
            if not of_settings(self.name, text):
                yield DiagnosticFailure(test=self.name, gpu=gpu, text=text)


def _read(lines: Sequence[str]) -> Iterator[GpuDiagnostic]:
    tests = _tests(lines)
    if tests:
        failures = [failure for test in tests for failure in test.failures()]
        yield GpuDiagnostic(failures=tuple(failures[:MOST_FAILURES]))


def _tests(lines: Sequence[str]) -> Sequence[_Test]:
    tests: list[_Test] = []
    text: _Text | None = None
    of_test = False
    """Whether the rows below belong to a test; the versions have rows of the same form."""
    for line in lines:
        row = ROW.match(line)
        if row is None or HEAD.match(line):
            text, of_test = None, False
            continue
        name, info = row["name"].strip(), row["info"][1:]
        status = STATUS.fullmatch(info.strip())
        if said := SAID.fullmatch(name):
            text = _Text(_gpu(said["gpu"], info))
            if of_test:
                tests[-1].texts.append(text)
        elif NOTED.match(name):
            text = _Text(None)
        elif name or status:
            text = None
        if name and status and text is None:
            tests.append(_Test(name))
        of_test = of_test if text is not None or not name else status is not None
        if text is not None:
            text.pieces.append(info[:PIECE].ljust(PIECE))
        elif of_test and status:
            tests[-1].result(status)
    return tests


def _gpu(told: str | None, info: str) -> int | None:
    """The GPU that an error is about, by its label or its words."""
    found = OF_GPU.search(info)
    number = told or (found[1] if found else "")
    return int(number) if number else None


KIND = Kind(
    name="dcgmi diag",
    holds=("| diagnostic ",),
    begins=HEAD,
    goes_on=re.compile(r"^[|+][ =-].{10,300}$"),
    read=_read,
    fewest=3,
)
