"""What is read from outputs of commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddoctor.evidence.section import Evidence
from ddoctor.reading import reader

Read = Callable[..., Evidence]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The evidence of texts, each in a file of the given name; one without a name is the only."""

    def run(*texts: str, **files: str) -> Evidence:
        named = {f"{number}.txt": text for number, text in enumerate(texts)}
        named |= {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
        folder = tmp_path / "outputs"
        for name, text in named.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        evidence, refused = reader.read([folder])
        assert refused == ()
        return evidence

    return run
