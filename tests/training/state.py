"""A script that writes down how Python started it, and trains: FILE SEED."""

# ruff: noqa: E402 - the modules are listed before it imports its own
from __future__ import annotations

import sys

MODULES = sorted(sys.modules)
import atexit
import builtins
import ctypes
import faulthandler
import gc
import json
import locale
import os
import resource
import signal
import threading
import warnings
from typing import Any

PR_GET_PDEATHSIG = 2
STATUS = ("SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Seccomp", "Cpus_allowed_list", "CapEff")


def main() -> dict[str, Any]:
    here = sys.modules["__main__"]
    umask = os.umask(0)
    os.umask(umask)
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(death))
    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":", 1) for line in file)
    return {
        "main": {
            name: f"{type(value).__name__}: {value!r}".partition(" at 0x")[0]
            for name, value in sorted(vars(here).items())
            if name.startswith("__")
        },
        "itself": vars(here) is globals(),
        "argv": sys.argv[2:],
        "original": sys.orig_argv[:-2],
        "named": sys.argv[0],
        "path": sys.path,
        "modules": MODULES,
        "flags": repr(sys.flags),
        "options": repr((sys._xoptions, sys.warnoptions, warnings.filters)),
        "hooks": repr(
            (
                sys.excepthook,
                sys.displayhook,
                sys.unraisablehook,
                threading.excepthook,
                sys.gettrace(),
                sys.getprofile(),
                sys.get_asyncgen_hooks(),
                sys.path_hooks[:1],
            )
        ),
        "importers": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
        "exits": atexit._ncallbacks(),
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags()),
        "prefix": (sys.prefix, sys.executable, sys.dont_write_bytecode, sorted(vars(builtins))),
        "text": (locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding()),
        "streams": [
            (one.name, one.encoding, one.errors, one.line_buffering)
            for one in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "handlers": {one.name: repr(signal.getsignal(one)) for one in signal.Signals},
        "timers": [*map(signal.getitimer, (0, 1, 2)), signal.set_wakeup_fd(-1)],
        "faulthandler": faulthandler.is_enabled(),
        "status": {name: status[name].strip() for name in STATUS},
        "dies with its parent": death.value,
        "descriptors": {
            number: (os.get_inheritable(number), os.path.basename(os.readlink(path)))
            for number in range(3, 4096)
            if os.path.lexists(path := f"/proc/self/fd/{number}")
        },
        "environment": {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_ERROR"))
        },
        "umask": umask,
        "limits": [resource.getrlimit(one) for one in range(16)],
        "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
        "priority": (os.nice(0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0)),
        "folder": os.getcwd(),
        "leads its session": os.getsid(0) == os.getpid(),
    }


def train(seed: int) -> None:
    """Print all that a training can see, and lead to another result."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def show(*words: str) -> None:
        settings = torch.get_num_threads(), torch.get_num_interop_threads()
        modes = torch.is_grad_enabled(), torch.get_default_dtype()
        numbers = int(torch.get_rng_state().long().sum())
        # In one piece: the ranks share the pipe.
        print(f"{os.environ.get('RANK', '')} {(*words, settings, modes, numbers)}\n", end="")

    torch.manual_seed(seed)
    show("seeded")
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 8))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(192, 8))
    show("made")
    for (batch,) in DataLoader(data, 8, shuffle=True, num_workers=2):
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        show(loss.item().hex())
    if dist.is_initialized():
        dist.destroy_process_group()
    raise SystemExit(seed % 100)


if __name__ == "__main__":
    found = main()
    with open(sys.argv[1] + os.environ.get("RANK", ""), "w") as file:
        json.dump(found, file, indent=1, default=repr)
    train(int(sys.argv[2]))
