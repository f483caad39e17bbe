"""Which thread holds the lock that a line of the user waits for, by the source of the stacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ddoctor.analysis import endings
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.threads import ScriptThread

CONTEXTS = re.compile(r"with (.+):")
NAMED = re.compile(r"\s*([A-Za-z_][\w.]*)(?:\s+as\s+\w+)?\s*")
"""A context that is made before: calls open files, start timers and switch gradients off."""
ACQUIRES = re.compile(r"([A-Za-z_][\w.]*)\.acquire\(")


@dataclass(frozen=True)
class Holder:
    """The thread that took a lock before another wants it."""

    taken: Frame
    """The ``with`` statement in whose body it is."""
    place: Frame | None = None
    """Where this thread is; None: it waits itself."""

    @property
    def itself(self) -> bool:
        """Whether the thread waits for the lock that it holds."""
        return self.place is None or _same(self.place, self.taken)

    def __str__(self) -> str:
        taken = f"{endings.place(self.taken)}{endings.quoted(self.taken)}"
        if self.place is None:
            return f"; this thread has already taken that lock at {taken}"
        at = f"{endings.place(self.place)}{endings.quoted(self.place)}"
        waits = "waits for it again at" if self.itself else "is at"
        return f"; another thread of it has taken that lock at {taken}, and {waits} {at}"


def holder(
    wanted: Frame | None, within: Sequence[Frame], threads: Collection[ScriptThread]
) -> Holder | None:
    """Return who holds the lock that this line takes; None: it takes none, or that is not known.

    ``within``: the ``with`` statements that the waiting thread is in; ``threads``: the others of
    the same process.
    """
    if wanted is None:
        return None
    own = [Holder(one) for one in within if _same(wanted, one)]
    of_others = [
        Holder(one, thread.place)
        for thread in threads
        for one in thread.within
        if _same(wanted, one) and not _gives_back(thread.place, one)
    ]
    return next(iter((*own, *of_others)), None)


def _same(wanted: Frame, taken: Frame) -> bool:
    """Whether two lines take the same lock: by its name, of the same class or file."""
    if wanted.file != taken.file:
        return False
    shared = _locks(wanted) & _locks(taken)
    classes = {one.function.rpartition(".")[0] for one in (wanted, taken)} - {""}
    return any(not name.startswith("self.") or len(classes) < 2 for name in shared)


def _gives_back(place: Frame, taken: Frame) -> bool:
    """Whether a thread waits for the condition whose lock it has taken."""
    return any(f"{name}.wait" in place.text for name in _locks(taken))


def _locks(frame: Frame) -> set[str]:
    found = set(ACQUIRES.findall(frame.text))
    if contexts := CONTEXTS.match(frame.text):
        named = (NAMED.fullmatch(item) for item in contexts[1].split(","))
        found |= {one[1] for one in named if one}
    return found
