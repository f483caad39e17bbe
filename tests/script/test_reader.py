"""Which files are read, and what is said of those that cannot be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddoctor.evidence.limits import impossible
from ddoctor.evidence.script import Script
from ddoctor.evidence.section import Evidence
from ddoctor.script import modules
from ddoctor.script.reader import read
from tests.script.conftest import Read
from tests.script.sources import CLASSES, ddp


def why(script: Script) -> dict[str, str]:
    return {one.what: one.why for one in script.unseen}


def test_modules_are_found_through_imports(script: Read) -> None:
    found = script(
        "import own, package.inner\nfrom package import second\nfrom other import *\nimport torch",
        {
            "own.py": "import train\nfrom own import x\n",  # in a circle
            "package/__init__.py": "from . import third\n",
            "package/inner.py": "from .second import y\nfrom ..other import z\n",
            "package/second.py": "",
            "package/third.py": "",
            "other.py": "def late():\n    from unseen_here import z\n",
            "never.py": "",
        },
    )
    assert sorted(found.files) == [
        *("other.py", "own.py", "package/__init__.py", "package/inner.py"),
        *("package/second.py", "package/third.py", "train.py"),
    ]
    assert found.files[0] == "train.py"
    assert found.unseen == ()


def test_modules_of_other_folders_and_of_libraries(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "site-packages"
    for folder in (tmp_path / "src", tmp_path / "scripts", library):
        folder.mkdir(parents=True)
    (tmp_path / "scripts" / "train.py").write_text("import mine, theirs, json, torch")
    (tmp_path / "src" / "mine.py").write_text("")
    (library / "theirs.py").write_text("")
    found = read(tmp_path / "scripts" / "train.py", (tmp_path / "src", library))
    assert found.files == ("train.py", "mine.py")
    assert read(tmp_path / "scripts" / "train.py", ()).files == ("train.py",)


def test_what_cannot_be_read_is_named(script: Read) -> None:
    found = script(
        "import broken, mixed, null, deep, long",
        {
            "broken.py": "x = 1\nif x\n    pass\n",
            "null.py": "x = 1\0",
            "deep.py": "x = " + "(" * 3000 + ")" * 3000,
            "long.py": "x = " + " + ".join(["1"] * 20_000),
        },
    )
    told = why(found)
    assert told["broken.py:2"].startswith("a syntax error")
    assert [one.place for one in found.broken][:1] == ["broken.py:2"]
    assert {"deep.py", "long.py"} <= {name.partition(":")[0] for name in told}
    assert any("null" in name for name in told)
    assert found.files == ("train.py",)


def test_encodings(tmp_path: Path) -> None:
    source = "# coding: latin-1\nimport torch, one, two\ntorch.save(x, 'é.pt')\n"
    (tmp_path / "train.py").write_bytes(source.encode("latin-1"))
    (tmp_path / "one.py").write_bytes(b"name = '\xe9'\n")
    (tmp_path / "two.py").write_bytes(b"\n\n\nname = '\xe9'\n")
    found = read(tmp_path / "train.py", ())
    assert found.calls[0].at.text == "torch.save(x, 'é.pt')"
    assert why(found) == {
        "one.py:1": "a syntax error: invalid or missing encoding declaration",
        "two.py": "it is not utf-8: byte 11 cannot be read",
    }
    (tmp_path / "train.py").write_bytes(b"# coding: klingon\n")
    assert "unknown encoding" in why(read(tmp_path / "train.py", ()))["train.py:1"]


def test_no_script_is_there(tmp_path: Path) -> None:
    assert why(read(tmp_path / "train.py", ())) == {"train.py": "No such file or directory"}
    assert why(read(tmp_path, ())) == {tmp_path.name: "Is a directory"}
    os.mkfifo(tmp_path / "pipe.py")
    assert read(tmp_path / "pipe.py", ()).lines <= 1


def test_files_above_the_limits(tmp_path: Path) -> None:
    with (tmp_path / "train.py").open("wb") as file:
        file.truncate(100 * 2**20)
    found = read(tmp_path / "train.py", ())
    assert why(found) == {"train.py": "the files have more than 2 MiB together"}
    names = [f"module_{number}" for number in range(modules.MOST_FILES + 10)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "train.py").write_text("".join(f"import {name}\n" for name in names))
    found = read(tmp_path / "train.py", ())
    assert len(found.files) == modules.MOST_FILES
    assert "more modules" in why(found)


def test_facts_are_bounded(script: Read) -> None:
    line = "torch.save(x, 'model.pt')\n"
    found = script(f"import torch\ntorch.save({'x' * 5000}, path)\n{line * 3000}")
    assert len(found.calls) == 2000
    assert len(found.calls[0].at.text) <= 300
    assert impossible(found) == ""


def test_secrets_are_hidden(script: Read) -> None:
    key = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0iL3o"
    found = script(f'import wandb\nwandb.init(key="{key}", project="mine")\n')
    (section,) = Evidence([found])
    assert key not in repr(section)
    assert "project='mine'" in repr(section) or 'project="mine"' in repr(section)


@pytest.mark.parametrize("source", [ddp(), CLASSES])
def test_loops(script: Read, source: str) -> None:
    kinds = {loop.kind: loop.at.text for loop in script(source).loops}
    assert kinds.keys() == {"training", "epoch"}
    assert kinds["training"].startswith("for batch in")
    assert kinds["epoch"].startswith("for epoch in")


def test_a_loop_over_micro_steps_is_no_training_loop(script: Read) -> None:
    found = script(
        """
        while True:
            for micro in range(4):
                loss = model(next(batches))
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scheduler.step()
        """
    )
    assert [(loop.kind, loop.at.text) for loop in found.loops] == [("training", "while True:")]


def test_frameworks(script: Read) -> None:
    found = script(
        """
        import pytorch_lightning as pl
        from transformers import Trainer
        from torch.distributed.fsdp import fully_shard, FullyShardedDataParallel as FSDP
        from accelerate.utils import set_seed
        """
    )
    names = {one.framework for one in found.imports}
    assert names == {"Lightning", "Trainer", "FSDP1", "FSDP2", "accelerate"}
    assert found.imports[0].at.place == "train.py:2"


def test_names_through_imports(script: Read) -> None:
    found = script(
        """
        import torch.distributed as dist
        from torch import distributed
        from torch.distributed.distributed_c10d import barrier as wait
        dist.barrier()
        distributed.barrier()
        wait()
        queue.barrier()
        """
    )
    assert [one.name for one in found.calls] == ["torch.distributed.barrier"] * 3


def test_origins_of_arguments(script: Read) -> None:
    found = script(
        """
        import os, torch
        from torch.utils.data import DataLoader, DistributedSampler

        WORKERS = 4

        def main(given):
            rank = int(os.environ["RANK"])
            sampler = DistributedSampler(given) if rank else None
            DataLoader(given, sampler=sampler, num_workers=WORKERS)
            torch.cuda.set_device(f"cuda:{rank}")
        """
    )
    loader = next(one for one in found.calls if one.name.endswith("DataLoader"))
    assert loader.origin("dataset", 0) == ("?",)
    assert loader.origin("sampler") == ("torch.utils.data.DistributedSampler", "None")
    assert loader.origin("num_workers") == ("4",)
    device = next(one for one in found.calls if one.name.endswith("set_device"))
    assert device.origin("device", 0) == ("os.environ[RANK]",)


def test_fifty_modules_without_torch(tmp_path: Path) -> None:
    lines = "".join(f"def f{number}(x):\n    return x + {number}\n" for number in range(50))
    for number in range(50):
        after = f"import module_{number + 1}\n" if number < 49 else ""
        (tmp_path / f"module_{number}.py").write_text(after + lines)
    (tmp_path / "train.py").write_text("import module_0\n")
    code = (
        "import sys; from pathlib import Path; from ddoctor.script.reader import read\n"
        "found = read(Path('train.py'), ())\n"
        "print(len(found.files), found.lines > 5000, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["51", "True", "False"]
