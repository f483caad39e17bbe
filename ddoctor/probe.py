"""The entry of `torchrun … -m ddoctor.probe [run]`."""

from __future__ import annotations

import os
import sys

# torchrun -m puts the user's folder first: a queue.py there would replace Python's own.
if __name__ == "__main__" and os.path.realpath(sys.path[0] or os.curdir) == os.getcwd():
    del sys.path[0]

from ddoctor.proc import interruption

if __name__ == "__main__":
    # Until its signals are handled: Ctrl-C ends it without a traceback.
    interruption.end_at_once()

import signal

from ddoctor import console
from ddoctor.errors import DoctorError
from ddoctor.proc.parent import end_with_parent

LOCAL_RANK = ("--local-rank=", "--local_rank=")


def main() -> int:
    """Run one rank: measure, or record a script; a wrong option prints one line and returns 2."""
    console.accept_any()
    words = sys.argv[1:]
    # torch.distributed.launch puts --local-rank=N first, also before `run`.
    given = [word for word in words[:1] if word.startswith(LOCAL_RANK)]
    del words[: len(given)]
    recording = words[:1] == ["run"]
    if not recording or "TORCHELASTIC_RUN_ID" in os.environ:
        # A script may save a checkpoint. Without torchrun, its launcher may be a shell that exits.
        end_with_parent(signal.SIGTERM if recording else signal.SIGKILL)
    try:
        if recording:
            from ddoctor.training import rank

            return rank.main(words[1:], given)
        # torchrun forwards Ctrl-C as SIGTERM or SIGINT: end like Ctrl-C, with all cleanup.
        interruption.enable()
        from ddoctor.cluster import rank as probing

        return probing.main(words)
    except DoctorError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        pass
    except Exception as error:
        if not interruption.received:
            return _complain(console.internal_error(error))
    finally:
        sys.stdout.flush()
    _complain("interrupted")
    return interruption.exit_code()


def _complain(message: str) -> int:
    from ddoctor.cluster.launcher_environment import explain_failure
    from ddoctor.evidence import redaction

    line = f"ddoctor: {' '.join(redaction.text(message).split())}"
    console.say(line)
    explain_failure(line)
    return 2


if __name__ == "__main__":
    sys.exit(main())
