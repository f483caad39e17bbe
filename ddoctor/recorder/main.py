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
from functools import partial, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from signal import SIGINT, default_int_handler
from types import ModuleType
from typing import Any, NoReturn

from ddoctor import console
from ddoctor.evidence import redaction
from ddoctor.recorder import crash, recorded, script, tracebacks
from ddoctor.recorder.tape import ERROR, Tape
from ddoctor.recorder.timeline import Timeline

WRITERS = {
    "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
    "safetensors.torch": ("save_file", "save_model"),
    "accelerate.accelerator": ("Accelerator.save_state", "Accelerator.save_model"),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model"),
    "peft.peft_model": ("PeftModel.save_pretrained",),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "lightning.fabric.fabric": ("Fabric.save",),
    "lightning_fabric.fabric": ("Fabric.save",),
    "deepspeed.runtime.engine": ("DeepSpeedEngine.save_checkpoint",),
}
"""What writes checkpoints, by the module that is imported after torch. Its whole call counts: it
also gathers states, and copies them to the host."""

FUNCTIONAL = "torch.distributed._functional_collectives"

# What the script calls is watched.
LEAVE = os._exit

LONGEST_SOCKET_PATH = 107  # sockaddr_un, unix(7)
LONGEST_SOCKET_NAME = len("/listener-12345678")


class Watcher(MetaPathFinder):
    """Calls back as soon as a module has been imported, before its importer continues."""

    def __init__(self, calls: dict[str, Callable[[], None]]) -> None:
        self._calls = calls

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._calls:
            return None
        # Who only asks whether a module is there, as transformers and datasets do, imports nothing.
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        found = (one.find_spec(name, path, target) for one in others)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            _then(spec.loader, lambda: self._calls.pop(name, _nothing)())
        return spec


def _nothing() -> None:
    """For a module that was imported before."""


def _then(loader: Loader, call: Callable[[], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        call()

    setattr(loader, "exec_module", exec_module)  # noqa: B010 - of this loader alone


def main(before: Collection[str]) -> None:
    """Run the script of ``sys.argv``: FOLDER SCRIPT ARGS; the process ends as the script ends.

    Without a folder, or if it cannot be written, nothing is recorded. ``before``: the modules that
    Python itself had imported.
    """
    name, words = sys.argv[1], sys.argv[2:]
    # Before them: -c, its code and the folder.
    sys.orig_argv[-len(words) - 3 :] = words
    pid = os.getpid()
    recording: _Recording | None = None
    try:
        recording = _Recording(Path(name)) if name else None
    except Exception as error:
        # No fault of the script's, which is not to fail for it.
        _complain(f"nothing is recorded: {error!r}")
    failed: BaseException | None = None
    interruption.handle([SIGINT], default_int_handler)
    tracebacks.install()
    try:
        script.run(words, before)
    except script.Failed as error:
        # One complaint of each host is enough.
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _complain(str(error))
        LEAVE(2)
    except BaseException as error:
        failed = error
    # A child that the script forked comes by here, too.
    if recording is not None and os.getpid() == pid:
        with suppress(Exception):
            recording.end(failed)
    if failed is not None:
        if recording is not None and recording.expected(failed):
            sys.stdout.flush()
            LEAVE(1)  # its traceback is nothing to look into
        tracebacks.hide()
        try:
            raise failed
        finally:
            # It holds the script's frames. With this name, it would do so until after ``atexit``:
            # torch waits there for loader workers that the end of their frame would have ended.
            del failed


class _Recording:
    """All that records the script, from before its first line to its end."""

    def __init__(self, folder: Path) -> None:
        _keep_sockets(folder)
        crash.keep(folder / recorded.CRASH)
        self._folder = folder
        self._tape = Tape(folder / recorded.TAPE, for_good=True)
        self._timeline = Timeline(self._tape)
        self._recorders: list[Any] = []
        self._pid = os.getpid()
        self._watch_exit()
        calls = {"torch": self._torch_is_there}
        calls |= {name: partial(self._time_saving, name) for name in WRITERS}
        calls[FUNCTIONAL] = self._functional_is_there
        # A site's own start-up file may have imported some; what watches them comes with torch.
        for name in [name for name in calls if name in sys.modules]:
            calls.pop(name)()
        sys.meta_path.insert(0, Watcher(calls))

    def expected(self, error: BaseException) -> bool:
        """Whether a trial of ddoctor ended the script."""
        return any(recorder.expected(error) for recorder in self._recorders)

    def end(self, failed: BaseException | None) -> None:
        """Write what is recorded, and how the script ended."""
        for recorder in self._recorders:
            with suppress(Exception):
                recorder.end()
        self._write(script.ending(failed))

    def _watch_exit(self) -> None:
        """Write how the script ended if it calls ``os._exit``, which skips all else."""

        @wraps(LEAVE)
        def leave(status: int) -> NoReturn:
            # A child that the script forked ends so, too.
            if status and os.getpid() == self._pid:
                with suppress(Exception):
                    self._write(script.exiting(status))
            LEAVE(status)

        os._exit = leave

    def _write(self, ending: script.Ending) -> None:
        if error := recorded.write(self._folder, recorded.ENDING, redaction.redact(ending)):
            self._tape.head[ERROR] = error

    def _torch_is_there(self) -> None:
        try:
            module = importlib.import_module("ddoctor.recorder.recorder")
            isolate = bool(os.environ.get(recorded.ISOLATE))
            recorder = module.Recorder(self._folder, self._timeline, isolate=isolate)
            recorder.install()
            self._recorders.append(recorder)
        except Exception as error:
            _complain(f"nothing is recorded: {error!r}")

    def _functional_is_there(self) -> None:
        for recorder in self._recorders:
            with suppress(Exception):
                recorder.watch_functional(sys.modules[FUNCTIONAL])

    def _time_saving(self, name: str) -> None:
        with suppress(Exception):
            module = importlib.import_module("ddoctor.recorder.calls")
            module.time_saving(self._timeline, sys.modules[name], WRITERS[name])


def _complain(message: str) -> None:
    console.say(f"ddoctor: {redaction.text(message)}")


def _keep_sockets(folder: Path) -> None:
    """Have multiprocessing put its sockets here, to be removed even if a worker is killed."""
    if len(str(folder)) + LONGEST_SOCKET_NAME < LONGEST_SOCKET_PATH:
        process: Any = multiprocessing.current_process()
        # Where multiprocessing.util.get_temp_dir looks first; workers inherit it.
        process._config["tempdir"] = str(folder)
