"""Runs and records the script of one rank."""

# ruff: noqa: E402 - during the imports, Ctrl-C must not show a traceback of ddoctor.

from __future__ import annotations

from ddoctor.proc import interruption

interruption.end_at_once()

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from signal import SIGINT, default_int_handler
from types import ModuleType
from typing import Any

from ddoctor.evidence import redaction
from ddoctor.recorder import crash, recorded, script, tracebacks
from ddoctor.recorder.tape import Tape
from ddoctor.recorder.timeline import Timeline

WRITERS = {
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
}
"""Functions of modules other than torch that write checkpoints."""

LONGEST_SOCKET_PATH = 107  # sockaddr_un, unix(7)
LONGEST_SOCKET_NAME = len("/listener-12345678")


class Watcher(MetaPathFinder):
    """Calls back as soon as a module has been imported, before its importer continues."""

    def __init__(self, calls: dict[str, Callable[[], None]]) -> None:
        self._calls = calls

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        call = self._calls.pop(name, None)
        spec = find_spec(name) if call is not None else None
        if call is not None and spec is not None and spec.loader is not None:
            _then(spec.loader, call)
        return spec


def _then(loader: Loader, call: Callable[[], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        call()

    setattr(loader, "exec_module", exec_module)  # noqa: B010 - of this loader alone


def main(before: Collection[str]) -> None:
    """Run the script of ``sys.argv``: FOLDER SCRIPT ARGS; the process ends as the script ends.

    ``before``: the modules that Python itself had imported.
    """
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    # Before them: -c, its code and the folder.
    sys.orig_argv[-len(words) - 3 :] = words
    _keep_sockets(folder)
    crash.keep(folder / recorded.CRASH)
    tape = Tape(folder / recorded.TAPE, for_good=True)
    timeline = Timeline(tape)
    pid = os.getpid()
    recorders: list[Any] = []

    def torch_is_there() -> None:
        try:
            module = importlib.import_module("ddoctor.recorder.recorder")
            isolate = bool(os.environ.get(recorded.ISOLATE))
            recorder = module.Recorder(folder, timeline, isolate=isolate)
            recorder.install()
            recorders.append(recorder)
        except Exception as error:
            # No fault of the script's, which is not to fail for it.
            _complain(f"nothing is recorded: {error!r}")

    def time_saving(name: str) -> None:
        with suppress(Exception):
            module = importlib.import_module("ddoctor.recorder.calls")
            module.time_saving(timeline, sys.modules[name], WRITERS[name])

    calls = {"torch": torch_is_there} | {name: partial(time_saving, name) for name in WRITERS}
    # A site's own start-up file may have imported some.
    for name in sys.modules.keys() & calls.keys():
        calls.pop(name)()
    sys.meta_path.insert(0, Watcher(calls))
    failed: BaseException | None = None
    interruption.handle([SIGINT], default_int_handler)
    try:
        script.run(words, before)
    except script.Failed as error:
        # One complaint of each host is enough.
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _complain(str(error))
        os._exit(2)
    except BaseException as error:
        failed = error
    # A child that the script forked comes by here, too.
    if os.getpid() == pid:
        for recorder in recorders:
            with suppress(Exception):
                recorder.end()
        with suppress(Exception):
            recorded.write(folder, recorded.ENDING, redaction.redact(script.ending(failed)))
    if failed is not None:
        if any(recorder.expected(failed) for recorder in recorders):
            sys.stdout.flush()
            os._exit(1)  # its traceback is nothing to look into
        tracebacks.hide()
        raise failed


def _complain(message: str) -> None:
    print("ddoctor:", redaction.text(message), file=sys.stderr, flush=True)


def _keep_sockets(folder: Path) -> None:
    """Have multiprocessing put its sockets here, to be removed even if a worker is killed."""
    if len(str(folder)) + LONGEST_SOCKET_NAME < LONGEST_SOCKET_PATH:
        process: Any = multiprocessing.current_process()
        # Where multiprocessing.util.get_temp_dir looks first; workers inherit it.
        process._config["tempdir"] = str(folder)
