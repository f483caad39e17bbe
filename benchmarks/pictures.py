"""Draws the pictures of the README from real runs: `python -m benchmarks.pictures`.

It runs a training whose DataLoader is too slow, and a plan. Chromium draws the page.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.models import Command
from ddoctor.report import terminal

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
SCRIPT = ROOT / "tests" / "ward" / "scripts" / "images.py"
TRAINING = "torchrun --nproc-per-node 2 train.py --num-workers 0 --read-ms 2"
PLAN = "--params 4.4B --precision bf16 --optimizer adamw-fp32 --activations 10GB --gpu h100-80"


def ddoctor(folder: Path, *arguments: str) -> None:
    """Run ddoctor in a folder; findings are no failure."""
    subprocess.run(
        [sys.executable, "-m", "ddoctor", *arguments],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        check=False,
    )


def draw_terminal(path: Path, evidence: Path, command: Command, title: str) -> None:
    """Draw the terminal report of a bundle, without the web fonts that rich refers to."""
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True)
    collected = bundle.read(evidence)
    terminal.render(engine.examine(collected, command), collected, console)
    drawn = console.export_svg(title=title)
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


def draw_page(path: Path, html: Path) -> None:
    """Draw the first screen of an HTML report."""
    subprocess.run(
        [
            *("chromium", "--headless", "--no-sandbox", "--hide-scrollbars"),
            *("--window-size=1200,1360", f"--screenshot={path}", html.as_uri()),
        ],
        check=True,
        capture_output=True,
    )


def main() -> None:
    """Draw all three."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(SCRIPT, folder / "train.py")
        files = ("--bundle", "run.json", "--html", "page.html")
        ddoctor(folder, "run", "--prove", *files, "--", *TRAINING.split())
        ddoctor(folder, "plan", *PLAN.split(), "--bundle", "plan.json")
        draw_terminal(
            PICTURES / "terminal.svg", folder / "run.json", "run", f"ddoctor run -- {TRAINING}"
        )
        draw_terminal(PICTURES / "plan.svg", folder / "plan.json", "plan", f"ddoctor plan {PLAN}")
        draw_page(PICTURES / "page.png", folder / "page.html")


if __name__ == "__main__":
    main()
