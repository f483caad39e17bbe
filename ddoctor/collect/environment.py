"""The environment variables that control a run, and the configuration files of NCCL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ddoctor import knowledge
from ddoctor.evidence.known_software import KnownVariables
from ddoctor.evidence.software import Environment, Variable


def environment(variables: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Environment:
    """The collected variables of ``variables.toml``, with those of NCCL's files."""
    known = knowledge.load(KnownVariables)
    return Environment(
        variables=tuple(
            Variable(
                name=name,
                value=value,
                origin=origin,
                missing=_missing(value),
            )
            for name, (origin, value) in sorted(in_force(variables, root).items())
            if known.collects(name)
        )
    )


def in_force(
    variables: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> Mapping[str, tuple[str, str]]:
    """Every variable as NCCL will see it: the file that sets it (empty: none), and its value.

    NCCL sets what its files say where the environment does not: first NCCL_CONF_FILE, or else
    ``~/.nccl.conf``, then ``/etc/nccl.conf`` (its src/misc/param.cc).
    """
    set_by = {name: ("", value) for name, value in variables.items()}
    home = variables.get("HOME")
    own = variables.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else "")
    for file in filter(None, (own.lstrip("/"), "etc/nccl.conf")):
        with suppress(OSError):
            for line in (root / file).read_text(errors="replace").splitlines():
                # NCCL strips neither blanks nor quotes.
                name, equals, value = line.partition("=")
                if equals and not line.startswith("#"):
                    set_by.setdefault(name, (f"/{file}", value))
    return set_by


def _missing(value: str) -> Literal["", "file", "folder"]:
    path = Path(value)
    # A pattern such as %h stands for the host's name; ~ is not expanded by those who read these.
    if not value.startswith(("/", "./", "../", "~/")) or ":" in value or "%" in str(path.parent):
        return ""
    try:
        if path.exists():
            return ""
        return "file" if path.parent.exists() else "folder"
    except OSError:
        return ""


COLLECTORS = (environment,)
