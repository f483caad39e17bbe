"""The entry of `ddoctor`: catches all errors, and exits."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

# What typer makes of Ctrl-C.
TYPERS_INTERRUPTED = 130
# Characters of a message; those that ddoctor itself writes have fewer.
LONGEST = 1000


def main() -> NoReturn:
    """Run the command line; a failure is one line on stderr and exit code 2."""
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            # As on Ctrl-C, so that no process stays behind.
            signal.signal(number, signal.default_int_handler)
        _accept_any_terminal()
        code = _run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _complain("interrupted")
    except BrokenPipeError:
        # The reader has gone (`ddoctor list | head`), and no one reads the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = _complain(f"internal error: {type(error).__name__}: {error}; {_kept_traceback()}")
    sys.exit(code)


def _accept_any_terminal() -> None:
    """Replace characters that the terminal cannot show; write nothing to a closed stdout."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


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


def _complain(message: str) -> int:
    print("ddoctor:", line(message), file=sys.stderr)
    return 2


def line(message: str) -> str:
    """Return a message in one line, however long and strange the text in it is."""
    from ddoctor.characters import tamed
    from ddoctor.evidence import redaction

    words = tamed(redaction.text(" ".join(message.split())))
    if len(words) <= LONGEST:
        return words
    # What to do stands at the end.
    return f"{words[: LONGEST // 2]} … {words[-LONGEST // 2 :]}"


def _kept_traceback() -> str:
    """Write the traceback to a file; says where it is."""
    import traceback
    from tempfile import NamedTemporaryFile

    from ddoctor.evidence import redaction

    try:
        with NamedTemporaryFile("w", prefix="ddoctor-", suffix=".traceback", delete=False) as file:
            file.write(redaction.text(traceback.format_exc()))
    except OSError:
        return "its traceback could not be written"
    return f"please report it with {file.name}"


if __name__ == "__main__":
    main()
