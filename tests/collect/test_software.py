from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ddoctor.collect.software import software
from ddoctor.collect.torch_build import LOADED_NCCL
from ddoctor.proc.files import search

NCCL = b"\x7fELF\0" + b"x" * 5000 + b"NCCL version 2.27.3+cuda12.9 compiled with CUDA 12.9\0rest"

PLAYED = """\
from types import SimpleNamespace
__version__ = "2.8.0+cu128"
version = SimpleNamespace(cuda="12.8", hip=None)
cuda = SimpleNamespace(
    get_arch_list=lambda: ["sm_80", "sm_90"], nccl=SimpleNamespace(version=lambda: (2, 27, 3))
)
"""


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, source: str) -> None:
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_the_torch_of_this_machine() -> None:
    section = software()
    assert section.torch is not None
    assert section.torch.version == version("torch")
    assert Path(section.torch.path, "__init__.py").exists()
    assert section.version("accelerate") == version("accelerate")
    assert section.version("no-such-package") is None
    assert section.python == sys.version.split()[0]


def test_a_torch_built_for_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, PLAYED)
    torch = software().torch
    assert torch is not None
    assert (torch.version, torch.cuda, torch.nccl) == ("2.8.0+cu128", "12.8", "2.27.3")
    assert torch.architectures == ("sm_80", "sm_90")
    assert torch.nccl_library is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named 'torch'"),
        ("raise ImportError('x.so: undefined symbol: ncclCommRegister')", "ncclCommRegister"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("import sys; sys.exit(3)", "exited with 3"),
        ("import time; time.sleep(600)", "longer than 2 s"),
    ],
)
def test_a_broken_torch_is_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, words: str
) -> None:
    play(monkeypatch, tmp_path, source)
    section = software(limit=2.0 if "sleep" in source else 60.0)
    assert section.torch is None
    assert words in section.torch_error
    assert section.packages


def test_a_torch_that_prints_on_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, "print('welcome')\n" + PLAYED)
    assert software().torch is not None


def test_a_folder_that_shadows_modules_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('the folder of the user was imported')")
    monkeypatch.chdir(tmp_path)
    assert software().torch is not None


def test_nccl_libraries_by_what_leads_to_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, PLAYED)
    wheel, other = tmp_path / "nvidia/nccl/lib", tmp_path / "other"
    for folder in (wheel, other):
        folder.mkdir(parents=True)
    (wheel / "libnccl.so.2").write_bytes(NCCL)
    (other / "libnccl.so.2.18.3").write_bytes(NCCL.replace(b"2.27.3+cuda12.9", b"2.18.3+cuda11.0"))
    (other / "libnccl.so.2").symlink_to("libnccl.so.2.18.3")
    (other / "libnccl.so").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{other}:{tmp_path}/absent:")
    told = {
        (library.path, library.found, library.version, library.cuda)
        for library in software().nccl_libraries
        if "ldconfig" not in library.found
    }
    assert told == {
        (f"{wheel}/libnccl.so.2", ("nvidia-nccl",), "2.27.3", "12.9"),
        (f"{other}/libnccl.so.2.18.3", ("LD_LIBRARY_PATH",), "2.18.3", "11.0"),
        (f"{other}/libnccl.so", ("LD_LIBRARY_PATH",), None, None),
    }


def test_nothing_but_the_path_of_a_mapped_library(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text(
        "7ff7bfdb0000-7ff7bfdb1000 r--s 00000000 fd:00 123     /usr/lib/libnccl.so.2.27.3\n"
        "7ff7bfdbd000-7ff7bfdc1000 rw-p 00000000 00:00 0 \n"
        "7ff7bfdc7000-7ff7bfdc9000 r-xp 00000000 00:00 0       [vdso]\n"
    )
    assert search(LOADED_NCCL, tmp_path / "maps") == "/usr/lib/libnccl.so.2.27.3"


def test_the_nccl_that_importing_torch_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(NCCL)
    mapped = (
        f"import mmap\nfile = open({str(library)!r}, 'rb')\n"
        "held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    )
    play(monkeypatch, tmp_path, mapped + PLAYED)
    section = software()
    assert section.loaded_nccl is not None
    assert section.loaded_nccl.path == str(library)
    assert section.nccl_version == "2.27.3"
