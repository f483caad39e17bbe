from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddoctor.collect.job import job

COMMIT = "1f0d3e5c7b9a2846f0e1d2c3b4a5968778695a4b"


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *settings, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", ".")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    return tmp_path


def commit_of(folder: Path) -> str | None:
    return job("", (), folder).commit


def test_the_commit_of_a_branch(repository: Path) -> None:
    (repository / "deep" / "inside").mkdir(parents=True)
    assert commit_of(repository / "deep" / "inside") == git(repository, "rev-parse", "HEAD")


def test_the_commit_of_a_packed_branch(repository: Path) -> None:
    git(repository, "pack-refs", "--all")
    assert commit_of(repository) == git(repository, "rev-parse", "HEAD")


def test_the_commit_of_a_detached_head(repository: Path) -> None:
    git(repository, "checkout", "--detach")
    assert commit_of(repository) == git(repository, "rev-parse", "HEAD")


def test_the_commit_of_a_worktree(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "tree"
    git(repository, "worktree", "add", "-b", "side", str(other))
    git(other, "commit", "--allow-empty", "-m", "second")
    assert commit_of(other) == git(other, "rev-parse", "HEAD") != commit_of(repository)


def test_a_repository_without_a_commit_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init", ".")
    seen = job("", (), tmp_path)
    assert seen.commit is None
    assert "no commit" in seen.unseen[0].why


def test_a_damaged_repository_says_so(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    seen = job("", (), tmp_path)
    assert seen.commit is None
    assert "/nowhere" in seen.unseen[0].why


def test_no_repository_is_nothing_to_speak_of(tmp_path: Path) -> None:
    seen = job("", (), tmp_path)
    assert (seen.commit, seen.unseen) == (None, ())


def test_arguments_are_those_of_a_launched_program(tmp_path: Path) -> None:
    given = ("--lr", "0.1", "train.yaml")
    assert job("ddoctor.probe", given, tmp_path).arguments == given
    assert job("ddoctor.__main__", given, tmp_path).arguments is None
    assert job().arguments is None
