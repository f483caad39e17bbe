"""`torchrun … -m ddoctor.probe [NAME…]`: examine all hosts of a run, and report on rank 0."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn


def main() -> int:
    """One rank: it supervises the process that measures; rank 0 leads, and writes the report."""
    # torchrun -m puts the user's folder first: a queue.py there would be taken for Python's own.
    if sys.path and Path(sys.path[0] or os.curdir).resolve() == Path.cwd():
        del sys.path[0]
    words = sys.argv[1:]
    # torch.distributed.launch puts --local-rank=N before all other words.
    at = 1 if words and words[0].startswith(("--local-rank=", "--local_rank=")) else 0
    if words[at : at + 1] == ["run"]:
        return _run_script(words[:at] + words[at + 1 :])
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    from ddoctor.errors import DoctorError

    try:
        from ddoctor.cluster.launcher_environment import place
        from ddoctor.cluster.rank import parse, supervise
        from ddoctor.proc.parent import end_with_parent

        end_with_parent()
        mine = place()
        return supervise(mine, parse(mine.rank))
    except DoctorError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("interrupted")
    finally:
        sys.stdout.flush()


def _run_script(words: list[str]) -> int:
    from ddoctor.errors import DoctorError
    from ddoctor.training import rank

    try:
        return rank.main(words)
    except DoctorError as error:
        return _complain(str(error))
    finally:
        sys.stdout.flush()


def _complain(message: str) -> int:
    from ddoctor.cluster.launcher_environment import explain_failure

    line = f"ddoctor: {' '.join(message.split())}"
    print(line, file=sys.stderr)
    explain_failure(line)
    return 2


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """torchrun passes Ctrl-C on as SIGTERM or SIGINT: end alike, so that nothing stays behind."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
