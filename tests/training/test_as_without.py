"""What scripts do with processes, threads, signals and exceptions comes out as without ddoctor."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.training.conftest import MakeTraining

UNDER = (str(Path(sys.executable).with_name("ddoctor")), "run", "--no-prove", "--")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}|(?<=process )\d+")

SPAWNED = """
    import multiprocessing, os, sys

    class Box:
        def __init__(self, value): self.value = value
        def __repr__(self): return f"{type(self).__qualname__}({self.value})"

    def work(value): return Box(2 * value), sys.argv, os.path.basename(__file__)

    if __name__ == "__main__":
        for way in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(way).Pool(2) as pool:
                print(way, pool.map(work, range(3)), flush=True)
        raise SystemExit(4)
"""
EXECUTOR = """
    import concurrent.futures, multiprocessing

    def work(value):
        if value == 2: raise ValueError("two")
        return value * value

    if __name__ == "__main__":
        for way in ("fork", "spawn"):
            context = multiprocessing.get_context(way)
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
                print(list(executor.map(work, [3, 4])), flush=True)
                if way == "spawn": executor.submit(work, 2).result()
"""
PICKLED = """
    import __main__, pickle, sys, torch

    class Box:
        def open(self): pass

    def work(): pass

    for one in (Box, Box(), work, Box.open, __main__.work):
        print(pickle.dumps(one, 2), pickle.loads(pickle.dumps(one)) is not None)
    print(__main__ is sys.modules["__main__"], Box.__module__, Box.__qualname__)
    layer = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(layer.parameters())
    loader = torch.utils.data.DataLoader(list(range(8)), 2)
    for one in (layer, adam, loader):
        print(sorted(vars(one)), len(pickle.dumps(one)))
    raise SystemExit(4)
"""
THREADS = """
    import atexit, threading, time, torch

    def fails(): raise ValueError("in a thread")
    def late():
        time.sleep(1)
        print("the last thread", flush=True)

    threading.Thread(target=fails, name="mine").start()
    for one in threading.enumerate():
        if one is not threading.main_thread(): one.join()
    while threading.active_count() > 1: time.sleep(0.1)
    threading.Thread(target=late).start()
    atexit.register(print, "at exit")
    raise SystemExit(4)
"""
SIGNALS = """
    import os, signal, time, torch

    seen = []
    handled = "TERM INT HUP QUIT USR1 USR2 ALRM CHLD SEGV PIPE WINCH".split()
    for name in handled:
        signal.signal(signal.Signals["SIG" + name], lambda number, _: seen.append(number))
    for name in handled[:6]:
        os.kill(os.getpid(), signal.Signals["SIG" + name])
        for _ in range(100): pass
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    time.sleep(0.6)
    print(seen)
    if os.fork() == 0: os._exit(3)
    time.sleep(0.5)
    print(os.waitpid(-1, 0)[1], seen[-1])
    try: os.waitpid(-1, 0)
    except ChildProcessError as error: print(error)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("now", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""
COLLECTED = """
    import gc, os, signal, time, torch

    class Late(Exception):
        def __init__(self, seconds): super().__init__(seconds, "s")

    def raises(number, _):
        if number == signal.SIGALRM: raise TimeoutError("too late", 3)
        if number == signal.SIGUSR1: raise Late(0.5)
        raise SystemExit(4)

    many = [[] for _ in range(2_000_000)]
    # It comes while Python collects, which takes much longer.
    for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, signal.SIGTERM):
        if number != signal.SIGINT: signal.signal(number, raises)
        if os.fork() == 0:
            time.sleep(0.05)
            os.kill(os.getppid(), number)
            os._exit(0)
        try:
            gc.collect()
            # Of what ends a wait, Python's own Ctrl-C alone is as early as without.
            time.sleep(30 if number == signal.SIGINT else 1)
            print("nothing was raised")
        except (KeyboardInterrupt, Exception) as error:
            print(type(error).__name__, error.args, isinstance(error, Late), flush=True)
"""
INTERRUPTED = """
    import os, signal, torch

    def main():
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**7): pass

    main()
"""
EVENTS = """
    import asyncio, os, signal

    async def fails(): raise OSError("in a task")

    async def main():
        event, pipe = asyncio.Event(), asyncio.subprocess.PIPE
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, event.set)
        child = await asyncio.create_subprocess_exec("sh", "-c", "echo one; exit 3", stdout=pipe)
        print(await child.communicate(), child.returncode)
        os.kill(os.getpid(), signal.SIGUSR1)
        await event.wait()
        await asyncio.gather(asyncio.sleep(0.1), fails())

    asyncio.run(main())
"""
AGAIN = """
    import os, sys, torch

    if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, "again"])
    print(sys.argv)
    raise SystemExit(4)
"""
TRACED = """
    import inspect, logging, sys, traceback, warnings

    calls = []
    def trace(frame, event, _):
        if frame.f_code.co_filename == __file__:
            calls.append((frame.f_code.co_name, event, frame.f_lineno))
        return trace
    def add(value): return value + 1

    sys.settrace(trace)
    add(1)
    sys.settrace(None)
    print(calls, inspect.getsource(add), inspect.getfile(add) == __file__, inspect.getmodule(add))
    warnings.warn("look")
    print([one.name for one in traceback.extract_stack()])
    try: 1 / 0
    except ZeroDivisionError: print(traceback.format_exc())
    logging.warning("look", stack_info=True)
    class Fails:
        def __del__(self): raise RuntimeError("at its end")
    Fails()
    def hook(kind, error, where): print(kind, error, where.tb_frame.f_code.co_name, where.tb_lineno)
    sys.excepthook = hook
    raise KeyError("last")
"""
CHAINED = """
    import torch

    class Mute(Exception):
        def __str__(self): raise RuntimeError("no text")
    def first(): raise KeyError("first")
    def second():
        try: first()
        except KeyError as error: raise Mute from error
    try: second()
    except Mute: raise ValueError("surrogates \\udcff \\ud800")
"""
WORKER = """
    from torch.utils.data import DataLoader, Dataset

    class Bad(Dataset):
        def __len__(self): return 8
        def __getitem__(self, index):
            if index == 5: raise RuntimeError("a bad item")
            return index

    for batch in DataLoader(Bad(), 2, num_workers=1): print(batch, flush=True)
"""
SYNTAX = """
    import torch
    if 3
        print(1)
"""
READS = """
    import os, sys
    print(repr(sys.stdin.read()), os.isatty(0), os.isatty(1))
    sys.exit("its last words, \\u00e9")
"""
WARD = pytest.mark.ward
SCRIPTS = [
    pytest.param(SPAWNED, id="spawned"),
    pytest.param(EXECUTOR, id="executor", marks=WARD),
    pytest.param(PICKLED, id="pickled", marks=WARD),
    pytest.param(THREADS, id="threads", marks=WARD),
    pytest.param(SIGNALS, id="signals", marks=WARD),
    pytest.param(COLLECTED, id="collected", marks=WARD),
    pytest.param(INTERRUPTED, id="interrupted", marks=WARD),
    pytest.param(EVENTS, id="events", marks=WARD),
    pytest.param(AGAIN, id="executes itself", marks=WARD),
    pytest.param(TRACED, id="traced"),
    pytest.param(CHAINED, id="chained", marks=WARD),
    pytest.param(WORKER, id="worker", marks=WARD),
    pytest.param(SYNTAX, id="syntax", marks=WARD),
    pytest.param(READS, id="reads", marks=WARD),
]


@pytest.mark.parametrize("source", SCRIPTS)
def test_it_comes_out_as_without(training: MakeTraining, source: str) -> None:
    run = training(source)
    told = []
    for before in ((), UNDER):
        with run.started(*before, sys.executable, run.script.name) as process:
            told.append(run.outcome(process))
    bare, under = told
    assert under.exit_code == bare.exit_code != 0, (bare.stderr, under.stderr)
    for one, other in ((bare.stdout, under.stdout), (bare.stderr, under.stderr)):
        lines, there = ADDRESS.sub("…", one).split("\n"), ADDRESS.sub("…", other).split("\n")
        assert [line for line in there if line and line in lines] == list(filter(None, lines))
    assert len(under.stderr.splitlines()) - len(under.complaints) == len(bare.stderr.splitlines())
