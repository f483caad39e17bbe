"""A script finds itself in the recorder as if Python itself ran it, and ends alike."""

from __future__ import annotations

import signal
import stat
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from ddoctor.recorder import script
from tests.recorder.conftest import Record, Run

ITSELF = """
    "Its own words."
    import os, sys
    import __main__
    print(sys.argv, sys.path[0], __name__, __file__, __doc__, __spec__, __package__)
    print(__main__.__file__, vars(__main__) is globals(), sorted(globals()))
    print(os.getcwd(), os.environ.get("PYTHONSAFEPATH"), len(sys.path))
    print([name for name in os.environ if name.startswith("DDOCTOR")])
"""
PICKLED = """
    import pickle
    class Mine:
        pass
    def made():
        return 3
    assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)
    assert pickle.loads(pickle.dumps(made))() == 3
    print("pickled")
"""
SPAWNING = """
    import multiprocessing
    def work(number, queue):
        queue.put(number + 1)
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=work, args=(2, queue))
        process.start()
        print(queue.get(), flush=True)
        process.join()
        print(process.exitcode)
"""
LAST = """
    import atexit, threading, time
    class Mine:
        pass
    def late():
        import pickle
        print("late", type(pickle.loads(pickle.dumps(Mine()))).__name__)
    atexit.register(late)
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
"""
RAISING = """
    import json
    def load(text):
        try:
            return json.loads(text)
        except ValueError as error:
            raise RuntimeError("no such data") from error
    load("[")
"""
CHAINED = """
    def load():
        try:
            {}["weights"]
        except KeyError:
            raise ValueError("no weights")
    def main():
        try:
            load()
        except ValueError as error:
            raise RuntimeError("no model") from error
    main()
"""
GROUPED = """
    import sys
    def fail(error):
        raise error
    found = []
    for error in (ValueError("a"), TypeError("b")):
        try:
            fail(error)
        except Exception as one:
            found.append(one)
    if sys.version_info >= (3, 11):
        raise ExceptionGroup("several", found)
    raise found[0]
"""
UNSPEAKABLE = """
    class Silent(Exception):
        def __str__(self):
            raise TypeError("no text")
    raise Silent
"""
LOADING = """
    from torch.utils.data import DataLoader, Dataset
    class Texts(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return self.tokenise(index)
        def tokenise(self, index):
            try:
                return {}[index]
            except KeyError as error:
                raise ValueError("no such text") from error
    if __name__ == "__main__":
        for batch in DataLoader(Texts(), num_workers=WORKERS):
            pass
"""
HELD = """
    import atexit, sys
    class Workers:
        def __del__(self):
            print("ended")
    atexit.register(lambda: print("at exit"))
    def main():
        workers = Workers()
        sys.exit(3)
    main()
"""
HOOKED = """
    import sys
    def show(kind, error, trace):
        print("hook", kind.__name__, trace.tb_frame.f_code.co_name, trace.tb_next)
    sys.excepthook = show
    raise ValueError("for the hook")
"""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(ITSELF, id="itself"),
        pytest.param(PICKLED, id="pickled"),
        pytest.param(SPAWNING, id="spawning"),
        pytest.param(LAST, id="last"),
        pytest.param(RAISING, id="raising"),
        pytest.param(HOOKED, id="hooked"),
        pytest.param(CHAINED, id="chained"),
        pytest.param(GROUPED, id="grouped"),
        pytest.param(UNSPEAKABLE, id="no text"),
        pytest.param("raise ValueError('\\udc80 half')", id="half a character"),
        pytest.param("import sys; sys.exit(3)", id="exit"),
        pytest.param(HELD, id="exit from a function"),
        pytest.param("import sys; sys.exit()", id="exit without a code"),
        pytest.param("import sys; sys.exit('no data')", id="exit with words"),
        pytest.param("raise SystemExit(True)", id="exit with a truth"),
        pytest.param("import os; print('bye', flush=True); os._exit(5)", id="exit at once"),
        pytest.param("print('before')\nraise KeyboardInterrupt", id="interrupted"),
        pytest.param("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", id="killed"),
        pytest.param("print(1)\nif True\n    print(2)", id="no Python"),
        pytest.param("import nowhere_to_be_found", id="no such import"),
    ],
)
def test_it_runs_and_ends_as_without(bare: Run, record_anew: Record, source: str) -> None:
    without, recorded = bare(source), record_anew(source)
    assert recorded.stdout == without.stdout
    assert recorded.stderr == without.stderr
    assert recorded.exit_code == without.exit_code


def test_a_module_runs_as_without(bare: Run, record_anew: Record, tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("NAME = 'mine'\n")
    (package / "train.py").write_text(
        "import sys, mine\nprint(__name__, __package__, sys.argv, mine.NAME, sys.path[0])\n"
        "def fail():\n    raise ValueError('here')\nfail()\n"
    )
    without = bare("", "-m", "mine.train", "--steps", "3")
    recorded = record_anew("", "-m", "mine.train", "--steps", "3")
    assert (recorded.stdout, recorded.exit_code) == (without.stdout, without.exit_code)
    assert "['" + str(package / "train.py") in recorded.stdout
    assert recorded.stderr == without.stderr
    assert recorded.ending is not None
    assert [one.function for one in recorded.ending.stack] == ["<module>", "fail"]


@pytest.mark.parametrize("module", ["nowhere", "nowhere.train", "mine.absent", "mine.unfinished"])
def test_a_module_that_cannot_run_is_told_by_python(
    bare: Run, record_anew: Record, tmp_path: Path, module: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "unfinished.py").write_text("x = (1,\n")
    without, recorded = bare("", "-m", module), record_anew("", "-m", module)
    assert (recorded.exit_code, recorded.stderr) == (1, without.stderr)


def test_what_a_module_leaves_to_the_end_is_there(bare: Run, record_anew: Record) -> None:
    assert record_anew(LAST, "-m", "train").stdout == bare(LAST, "-m", "train").stdout != ""


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.ward), 1])
def test_an_exception_in_a_loader_shows_as_without(
    bare: Run, record_anew: Record, workers: int
) -> None:
    source = LOADING.replace("WORKERS", str(workers))
    without, recorded = bare(source), record_anew(source)
    assert "tokenise" in without.stderr
    assert recorded.stderr == without.stderr


def test_a_folder_with_a_main_runs_as_without(
    bare: Run, record_anew: Record, tmp_path: Path
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(
        "import sys, beside\nprint(sys.argv, __name__, beside.NAME)\n"
    )
    (tmp_path / "app" / "beside.py").write_text("NAME = 'beside'\n")
    assert record_anew("", "app", "-v").stdout == bare("", "app", "-v").stdout != ""


def test_a_command_on_the_path_runs(
    record_anew: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `torchrun --no-python` starts it: the entry point of a package."""
    command = tmp_path / "bin" / "train-it"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv, __name__)\nsys.exit(4)\n")
    command.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    recorded = record_anew("", "train-it", "-m", "--steps", "0")
    assert recorded.exit_code == 4
    assert recorded.stdout == f"{[str(command), '-m', '--steps', '0']} __main__\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("absent.py",), "there is no script absent.py"),
        (("folder",), "folder is a folder without a __main__.py"),
        (("binary",), "binary is no Python script"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    record_anew: Record, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    recorded = record_anew("", *words)
    assert (recorded.exit_code, recorded.stdout) == (2, "")
    assert recorded.stderr.startswith("ddoctor: ")
    assert told in recorded.stderr
    assert len(recorded.stderr.splitlines()) == 1


def test_an_exception_is_kept_with_the_users_own_frames(
    record_anew: Record, tmp_path: Path
) -> None:
    """Down to the first failure, wherever it was caught on its way."""
    ending = record_anew(RAISING).ending
    assert ending is not None
    assert ending.exception == "JSONDecodeError"
    assert (ending.then, ending.source) == ("RuntimeError: no such data", "")
    of_user = [one for one in ending.stack if one.of_user]
    assert [(one.function, one.line) for one in of_user] == [("<module>", 8), ("load", 5)]
    assert ending.stack[-1].function == "raw_decode"
    assert of_user[-1].file == str(tmp_path / "train.py")
    assert of_user[-1].text == "return json.loads(text)"


CAUGHT = """
    import os, sys, traceback
    class Exit(RuntimeError):
        def __init__(self, code):
            self.exit_code = code
    def check(loss):
        raise ValueError(f"loss {loss}")
    def main():
        try:
            check(2)
        except Exception as error:
            LEAVE
    def library():
        try:
            main()
        except Exit as error:
            sys.exit(error.exit_code)
    library()
"""


@pytest.mark.parametrize(
    ("leave", "code", "then"),
    [
        ("traceback.print_exc(); sys.exit(1)", 1, ""),
        ("traceback.print_exc(); os._exit(4)", 4, ""),
        ("os._exit(status=4)", 4, ""),
        ("raise SystemExit(1) from None", 1, ""),
        ("raise Exit(3)", 3, ""),
        ("sys.exit('no luck')", 1, "no luck"),
    ],
)
def test_an_exception_that_the_script_caught_before_it_exited(
    record_anew: Record, leave: str, code: int, then: str
) -> None:
    recorded = record_anew(CAUGHT.replace("LEAVE", leave))
    ending = recorded.ending
    assert ending is not None
    assert recorded.exit_code == code
    assert (ending.exception, ending.message) == ("ValueError", "loss 2")
    assert (ending.then, ending.source) == (then, "exit")
    functions = [one.function for one in ending.stack]
    assert functions == ["<module>", "library", "main", "check"]


@pytest.mark.parametrize(
    "leave",
    [
        "pass",
        "sys.exit(0)",
        "os._exit(0)",
        "sys.exit()",
        "os.fork() or os._exit(5)",
    ],
)
def test_an_exception_that_ended_nothing_is_not_kept(record_anew: Record, leave: str) -> None:
    recorded = record_anew(CAUGHT.replace("LEAVE", leave))
    assert recorded.exit_code == 0
    assert replace(recorded.ending or script.Ending(), stack=()) == script.Ending()


def test_where_a_script_leaves_by_itself_is_kept(record_anew: Record) -> None:
    ending = record_anew("import sys\ndef stop():\n    sys.exit(0)\nstop()").ending
    assert ending is not None
    assert [(one.function, one.line) for one in ending.stack] == [("<module>", 4), ("stop", 3)]


def test_an_exit_without_an_exception_is_kept_with_its_line(record_anew: Record) -> None:
    ending = record_anew("import os\ndef stop():\n    os._exit(5)\nstop()").ending
    assert ending is not None
    assert ending.exception == ""
    assert [(one.function, one.line) for one in ending.stack] == [("<module>", 4), ("stop", 3)]


def test_what_the_clean_up_raised_is_not_the_first_failure(record_anew: Record) -> None:
    ending = record_anew("""
        def train():
            raise FloatingPointError("not finite")
        def close():
            raise AttributeError("no writer")
        try:
            train()
        finally:
            close()
    """).ending
    assert ending is not None
    assert (ending.exception, ending.then) == ("FloatingPointError", "AttributeError: no writer")
    assert [one.function for one in ending.stack] == ["<module>", "train"]


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.ward), 1])
def test_the_line_in_a_worker_is_kept(record_anew: Record, workers: int) -> None:
    ending = record_anew(LOADING.replace("WORKERS", str(workers))).ending
    assert ending is not None
    of_user = [one for one in ending.stack if one.of_user]
    assert [one.function for one in of_user] == ["<module>", "__getitem__", "tokenise"]


def test_a_mistake_in_the_script_is_kept_with_its_line(record_anew: Record, tmp_path: Path) -> None:
    ending = record_anew("import os\nx = (1,\n").ending
    assert ending is not None
    assert ending.exception == "SyntaxError"
    assert [(one.file, one.line, one.of_user) for one in ending.stack] == [
        (str(tmp_path / "train.py"), 2, True)
    ]


def test_the_words_of_an_exit_are_kept() -> None:
    assert script.ending(SystemExit("no data")).message == "no data"
    assert script.ending(SystemExit(3)) == script.ending(None) == script.Ending()


def test_a_killed_script_has_no_last_words(record_anew: Record) -> None:
    recorded = record_anew("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (recorded.exit_code, recorded.ending) == (-signal.SIGKILL, None)


def test_torch_is_not_imported_before_the_script_does(record_anew: Record) -> None:
    """Else the script could no longer set torch's environment variables."""
    ran = record_anew("import sys; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert (ran.exit_code, ran.stdout) == (0, "False False\n"), ran.stderr


@pytest.mark.parametrize("words", [("train.py",), ("-m", "train")], ids=["script", "module"])
def test_the_users_own_modules_come_first(
    bare: Run, record_anew: Record, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Also where ddoctor has imported Python's own before."""
    for name in ("statistics", "resource", "platform"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "typing").mkdir()
    (tmp_path / "msgspec").mkdir()
    (tmp_path / "msgspec" / "__init__.py").write_text("from msgspec.json import MINE\n")
    (tmp_path / "msgspec" / "json.py").write_text("MINE = 2\n")
    source = """
        import json, msgspec, platform, resource, statistics, typing
        print(statistics.MINE, resource.MINE, platform.MINE, msgspec.MINE, typing.Any)
    """
    without, recorded = bare(source, *words), record_anew(source, *words)
    assert without.stdout == "True True True 2 typing.Any\n", without.stderr
    assert (recorded.stdout, recorded.stderr) == (without.stdout, "")


ASKS_FIRST = """
import importlib.util
for name in ("torch", "torch", "numpy", "safetensors.torch"):
    assert importlib.util.find_spec(name) is not None
assert importlib.util.find_spec("no_such_module") is None
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
print(torch.__name__, model(torch.ones(1, 4)).shape)
"""


def test_who_asks_for_torch_before_it_is_imported_is_recorded(
    bare: Run, record_anew: Record
) -> None:
    """Transformers and datasets ask whether it is there."""
    recorded = record_anew(ASKS_FIRST)
    assert (recorded.exit_code, recorded.stdout) == (0, bare(ASKS_FIRST).stdout), recorded.stderr
    # The first shows which optimizer steps in each iteration.
    assert recorded.done == 4
