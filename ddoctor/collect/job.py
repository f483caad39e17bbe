"""The launched program: its arguments, and the commit of its working folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ddoctor.evidence.section import Unseen
from ddoctor.evidence.software import Job
from ddoctor.proc.files import search, text

LAUNCHED = "ddoctor.probe"
"""The program that launchers start; ddoctor's own commands are not a job."""

COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def job(
    program: str | None = None, arguments: Sequence[str] | None = None, folder: Path | None = None
) -> Job:
    """The arguments of this process (by default), and the commit of its working folder."""
    if program is None:
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        program = main.name if main is not None else ""
    given = sys.argv[1:] if arguments is None else arguments
    commit, unseen = _commit(folder or Path.cwd())
    return Job(
        arguments=tuple(given) if program == LAUNCHED else None,
        commit=commit,
        unseen=unseen,
    )


def _commit(folder: Path) -> tuple[str | None, tuple[Unseen, ...]]:
    """The commit from git's files: git may be missing, and refuses other users' folders."""
    try:
        home = next(one / ".git" for one in (folder, *folder.parents) if (one / ".git").exists())
        if home.is_file():  # a worktree or a submodule
            home = home.parent / home.read_text().removeprefix("gitdir:").strip()
        word = (home / "HEAD").read_text().strip()
        if word.startswith("ref:"):
            word = _branch(home, word.removeprefix("ref:").strip())
    except StopIteration:
        return None, ()
    except (OSError, UnicodeDecodeError) as error:
        return None, (Unseen(what="the commit of the working folder", why=str(error)),)
    if COMMIT.fullmatch(word):
        return word, ()
    why = f"git's files in {home} name no commit"
    return None, (Unseen(what="the commit of the working folder", why=why),)


def _branch(home: Path, reference: str) -> str:
    shared = home / text(home / "commondir")
    packed = search(rf"^(\w+) {re.escape(reference)}$", shared / "packed-refs")
    return text(shared / reference) or packed


COLLECTORS = (job,)
