"""The entry of `ddoctor`: catches all errors, and exits."""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

from ddoctor import console
from ddoctor.proc import interruption

# What typer makes of Ctrl-C.
TYPERS_INTERRUPTED = 130
# Characters of a message; those that ddoctor itself writes have fewer.
LONGEST = 1000


def main() -> NoReturn:
    """Run the command line; a failure is one line on stderr and exit code 2."""
    try:
        # As on Ctrl-C, no process stays behind.
        interruption.enable()
        console.accept_any()
        code = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _interrupted()
    except BrokenPipeError:
        # The reader has gone (`ddoctor list | head`), and no one reads the rest.
        console.drop_stdout()
        code = 0
    except Exception as error:
        code = _failed(error)
    sys.exit(code)


def _run() -> int:
    # Imported here, so that Ctrl-C during the imports is caught, too.
    from typer import TyperException

    from ddoctor.cli import app
    from ddoctor.errors import DoctorError
    from ddoctor.options import explained

    try:
        code = int(app(prog_name="ddoctor", standalone_mode=False) or 0)
    except TyperException as error:
        return _complain(explained(error))
    except DoctorError as error:
        return _complain(str(error))
    except SystemExit:
        # In this mode typer exits only for a broken pipe.
        raise BrokenPipeError from None
    if code == TYPERS_INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _failed(error: Exception) -> int:
    if interruption.received:
        return _interrupted()
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        console.drop_stdout()
        return _complain(f"cannot write to stdout: {error.strerror}")
    return _complain(console.internal_error(error))


def _interrupted() -> int:
    _complain("interrupted")
    return interruption.exit_code()


def _complain(message: str) -> int:
    console.say(f"ddoctor: {line(message)}")
    return 2


def line(message: str) -> str:
    """Return a message in one line, however long and strange the text in it is."""
    from ddoctor.characters import tamed
    from ddoctor.evidence import redaction

    words = tamed(" ".join(redaction.text(message).split()))
    if len(words) <= LONGEST:
        return words
    # What to do stands at the end.
    return f"{words[: LONGEST // 2]} … {words[-LONGEST // 2 :]}"


if __name__ == "__main__":
    main()
