"""What a launch command would start, as far as its line and its files say it."""

from __future__ import annotations

import re

from ddoctor.evidence.section import Part, Section

COUNTED = "parameters of "
"""Begins the name of a setting with the number of parameters in the files of a model."""

KEY = re.compile(r"""(?:\.get\(|\[)(['"])(\w+)\1[^)\]]{0,80}[)\]]""")
"""A key of a table of options, as in ``cfg["workers"]`` and ``cfg.get("workers", 4)``."""


class Setting(Part, frozen=True, kw_only=True):
    """A value, and where it is written."""

    name: str
    value: str
    file: str = ""
    """Empty: not in a file."""
    line: int = 0
    origin: str = ""
    """Where it comes from, if not from a file: the command line, the environment, a default.

    With a file: what may replace a default of the shell there, ``HOST replaces localhost``.
    """

    @property
    def at(self) -> str:
        """Where it is written, such as ``fsdp.yaml:12`` or ``the command line``."""
        if not self.file:
            return self.origin
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if self.line else name

    @property
    def number(self) -> int | None:
        """The value as an integer; None: it is none."""
        text = self.value.strip()
        return int(text) if text.isdigit() and len(text) < 10 else None

    @property
    def on(self) -> bool:
        """Whether it switches something on."""
        return self.value.strip().lower() in ("true", "yes", "1", "on")


class Unknown(Part, frozen=True, kw_only=True):
    """An option or a key that the installed version does not know."""

    setting: Setting
    of: str
    """Whose option it is, such as ``accelerate launch``."""
    nearest: str = ""
    """A known name that is written alike; empty: there is none."""
    ignored: bool = False
    """Whether the training starts without it."""


class Launch(Section, frozen=True, kw_only=True):
    """A launch command: its launcher, its script, and what its line and files set."""

    commands = ("doctor", "run")
    obtained_by = "ddoctor doctor -- LAUNCH COMMAND"

    command: tuple[str, ...]
    launcher: str
    """The innermost launcher: torchrun, accelerate, deepspeed, python, …"""
    around: tuple[str, ...] = ()
    """What starts that launcher: srun, mpirun, a shell script, …, the outermost first."""
    file: str = ""
    """The file with the launch line; empty: the command line itself."""
    line: int = 0
    script: str = ""
    """Path of the script, or name of the module; empty: not known."""
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    """Those of the script."""
    settings: tuple[Setting, ...] = ()
    """By the names of ``ddoctor/launch/names.py``; of several with one name, the first wins."""
    files: tuple[str, ...] = ()
    """The files that were read."""
    unknown: tuple[Unknown, ...] = ()
    unresolved: tuple[Setting, ...] = ()
    """Words whose value only the shell, or the scheduler, will know."""

    def all(self, name: str) -> tuple[Setting, ...]:
        """All values with this name; the first one wins."""
        return tuple(one for one in self.settings if one.name == name)

    def get(self, *names: str) -> Setting | None:
        """The value that wins, of the first of these names that has one."""
        return next((found[0] for name in names if (found := self.all(name))), None)

    def number(self, *names: str) -> int | None:
        """That value as an integer; None: it is not set, or is none."""
        found = self.get(*names)
        return found.number if found is not None else None

    def argument(self, text: str) -> Setting | None:
        """The script's argument that its source reads; None: it is not set.

        ``args.workers`` and ``cfg["workers"]`` are ``arg.workers``, and ``self.cfg.data.workers``
        also ``arg.data.workers``.
        """
        parts = KEY.sub(r".\2", text).split(".")
        return self.get(
            *(f"arg.{'.'.join(parts[at:])}" for at in range(1, len(parts))), f"arg.{text}"
        )

    def written(self, text: str | None) -> int | None:
        """A number of the script's source, ``4`` or ``args.workers``; None: unknown."""
        if text is None or text.isdigit():
            return int(text) if text else None
        found = self.argument(text)
        return found.number if found is not None else None

    def on(self, name: str) -> bool:
        """Whether this setting is switched on."""
        found = self.get(name)
        return found is not None and found.on

    @property
    def seat(self) -> str:
        """The number of this host, and where it meets the others, as far as the launch says it."""
        found = map(self.get, ("host-rank", "endpoint", "main-address", "main-port"))
        return " ".join(one.value for one in found if one is not None)

    @property
    def hosts(self) -> int | None:
        """Number of hosts; None: not known."""
        return self.number("hosts")

    @property
    def ranks_per_host(self) -> int | None:
        """Number of ranks on each host; None: not known."""
        return self.number("ranks-per-host")

    @property
    def ranks(self) -> int | None:
        """Number of all ranks; None: not known."""
        if (total := self.number("ranks")) is not None:
            return total
        hosts, each = self.hosts, self.ranks_per_host
        return hosts * each if hosts is not None and each is not None else None
