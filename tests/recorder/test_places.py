"""Whose code a frame is."""

from __future__ import annotations

import email
import sys
from pathlib import Path

import pytest
import torch

from ddoctor.recorder import places


def test_the_code_of_a_library_is_not_the_users() -> None:
    for module in (email, torch, pytest, places):
        assert module.__file__ is not None
        assert not places.of_user(module.__file__)
    assert not places.of_user("<frozen runpy>")
    assert not places.of_user("<string>")
    assert not places.of_user("numpy/random/_common.pyx")


def test_the_code_of_a_project_is_the_users(tmp_path: Path) -> None:
    assert places.of_user(str(tmp_path / "train.py"))
    assert places.of_user(__file__)
    assert places.of_user("train.py")


def test_the_innermost_frame_of_the_user_is_found_behind_a_library() -> None:
    found: list[str] = []

    def called(one: int) -> int:
        frame = places.caller(sys._getframe(1))
        assert frame is not None
        found.append(frame.f_code.co_name)
        return one

    # sorted is C, and functools.reduce too: json goes through Python's own library.
    import json

    json.loads("[1]", parse_int=lambda word: called(int(word)))
    assert found == ["<lambda>"]


def test_a_place_is_shown_from_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert places.short(str(tmp_path / "model" / "net.py")) == "model/net.py"
    assert places.short("/elsewhere/net.py") == "/elsewhere/net.py"
