"""Files that all ranks save under one name, also under a temporary one."""

from __future__ import annotations

from tests.script.sources import SET_UP, ddp

INLINE = """
name = {name}
torch.save(model.module.state_dict(), name)
{moves}(name, {final})
"""
STORE = """
from pathlib import Path

class Store:
    def __init__(self, folder, rank=0):
        self.folder, self.rank = Path(folder), rank
        self.last = self.folder / {last}

    def write(self, model):
        {before}
        draft = self.last.with_suffix({suffix})
        torch.save(model.state_dict(), draft)
        draft.replace(self.last)

store = Store({made})
"""
OPENED = """
def write(state, path):
    with open(path + {suffix}, "wb") as file:
        torch.save(state, file)
    os.replace(path + {suffix}, path)
"""


def inline(
    name: str, *, moves: str = "os.replace", final: str = "'model.pt'", test: str = ""
) -> str:
    lines = INLINE.format(name=name, moves=moves, final=final)
    if test:
        lines = f"if {test}:\n" + lines.replace("\n", "\n    ")
    return ddp(head="import shutil, tempfile, uuid", epoch=lines)


def store(
    *,
    last: str = '"last.pt"',
    before: str = "pass",
    suffix: str = '".tmp"',
    made: str = '"runs"',
    call: str = "store.write(model.module)",
) -> str:
    head = STORE.format(last=last, before=before, suffix=suffix, made=made)
    return ddp(set_up=SET_UP + head, epoch=call)


def opened(suffix: str, call: str) -> str:
    return ddp(head=OPENED.format(suffix=suffix), epoch=call)


def pretrained(save: str, path: str = '"out"') -> str:
    made = "from transformers import AutoModel\nmodel = AutoModel.from_pretrained(args.model)"
    return ddp(set_up=f"folder = {path}\n{made}\n{SET_UP}", epoch=save)


WRITES = "write(model.module.state_dict(), os.path.join(args.output, f'{epoch}.pt'))"
TWINS = {
    "a temporary file of all ranks that each of them renames": (
        "shared-filesystem-race",
        inline("'model.pt.tmp'"),
        inline("f'model.pt.{local_rank}.tmp'"),
        inline("f'model.pt.{uuid.uuid4()}'"),
        inline("tempfile.mktemp()"),
        inline("'model.pt.tmp'", test="local_rank == 0"),
        inline("'model.pt.tmp'", test="dist.get_rank() == 0"),
        inline("draft_of(local_rank)"),
    ),
    "a temporary file that shutil moves": (
        "shared-filesystem-race",
        inline("os.path.join('runs', 'draft')", moves="shutil.move"),
        inline("os.path.join(own_folder, 'draft')", moves="shutil.move"),
    ),
    "a temporary file of an object": (
        "shared-filesystem-race",
        store(),
        store(last='f"last-{rank}.pt"', made='"runs", local_rank'),
        store(suffix='f".{self.rank}.tmp"', made='"runs", dist.get_rank()'),
        store(before="if self.rank != 0:\n            return", made='"runs", dist.get_rank()'),
        store(made="folder_of_this_host()"),
        store(call="if dist.get_rank() == 0:\n    store.write(model.module)"),
    ),
    "a model of transformers": (
        "shared-filesystem-race",
        pretrained("model.module.save_pretrained(folder)"),
        pretrained("if dist.get_rank() == 0:\n    model.module.save_pretrained(folder)"),
        pretrained("model.module.save_pretrained(folder, is_main_process=local_rank == 0)"),
        pretrained("model.module.save_pretrained(folder)", path='f"out-{local_rank}"'),
        pretrained("tokenizer.save_pretrained(folder)"),
        pretrained("model.module.save_pretrained(save_directory=own_folder())"),
    ),
    "a model as safetensors": (
        "shared-filesystem-race",
        pretrained("save_file(states, folder + '/model.safetensors')").replace(
            "import AutoModel", "import AutoModel\nfrom safetensors.torch import save_file"
        ),
        pretrained("save_file(states, f'{folder}/{local_rank}.safetensors')").replace(
            "import AutoModel", "import AutoModel\nfrom safetensors.torch import save_file"
        ),
    ),
    "a temporary file that is opened": (
        "shared-filesystem-race",
        opened("'.tmp'", WRITES),
        opened("str(os.getpid())", WRITES),
        opened("'.tmp'", WRITES.replace("args.output", "args.local_output")),
        opened("'.tmp'", f"if local_rank == 0:\n    {WRITES}"),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
