"""`python -m ddoctor.probing.usable_gpus`: the GPUs that probes can use on this host, as JSON.

It runs as a separate process, because importing torch takes seconds and hangs on a broken disk.
"""

from __future__ import annotations

import msgspec

from ddoctor.probing.gpu_users import occupied
from ddoctor.probing.world import usable_gpus
from ddoctor.proc.parent import end_with_parent


class UsableGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The number of GPUs that torch sees on this host, and whether they are free."""

    count: int
    in_use: str
    """Why probes must not use them; empty: they are idle."""


if __name__ == "__main__":
    end_with_parent()
    count = usable_gpus()
    found = UsableGpus(count=count, in_use=occupied() if count else "")
    print(msgspec.json.encode(found).decode())
