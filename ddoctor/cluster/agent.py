"""Runs torchrun: it ends without a traceback where ddoctor is interrupted."""

from __future__ import annotations

import sys


def main() -> None:
    """Run torchrun with the arguments of this process."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    try:
        run.main()
    except SignalException as ended:
        sys.exit(128 + ended.sigval)


if __name__ == "__main__":
    main()
