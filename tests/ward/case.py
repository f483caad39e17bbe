"""What a patient is: a script with a fault at a dose, and what has to be told of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

GREAT, LOUD, QUIET = 2.0, 1.3, 1.15


@dataclass(frozen=True, kw_only=True)
class Graded:
    """An option whose value makes the step so many times as long; the dose is set by the runner."""

    option: str
    per_step: float = 1
    """How often a step pays it: say the items of a batch, or 0.1 for each tenth step."""
    hidden: bool = False
    """Whether it runs beside the step (in a worker): only what is longer than the step counts."""

    def milliseconds(self, step: float, dose: float) -> float:
        """The option's value for a sound step of so many seconds."""
        return 1000 * step * (dose if self.hidden else dose - 1) / self.per_step


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script with its arguments, as two ranks run it."""

    name: str
    script: str
    """In ``scripts/``, without its ending."""
    fault: tuple[str, ...] = ()
    """The arguments that make it sick."""
    base: tuple[str, ...] = ()
    """The arguments that it has in any case."""
    cure: tuple[str, ...] = ()
    """The arguments that it has instead where it is sound."""
    alone: bool = False
    """Whether the sound step is that of one rank by itself."""
    roots: tuple[str, ...] = ()
    """The cause to be told first; several, where two names are both right. None: it is sound."""
    rank: int | None = None
    """The rank that has to be named."""
    dose: float | None = None
    """How many times as long as the sound step; None: the fault is no matter of speed."""
    graded: Graded | None = None
    cpus: float | None = None
    """The CPU quota of the cgroup that both ranks run in."""
    requires: str = ""
    """A package without which the script cannot run."""
    sampled: bool = False
    """Whether it is among the few that every test run takes."""

    @property
    def sick(self) -> bool:
        """Whether something has to be found."""
        return bool(self.roots)


def doses(case: Case, loud: tuple[str, ...] = (), quiet: tuple[str, ...] = ()) -> tuple[Case, Case]:
    """The case at two doses: by its graded option, or by arguments that the fault has then."""
    return (
        replace(case, name=f"{case.name}, loud", dose=LOUD, fault=(*case.fault, *loud)),
        replace(
            case, name=f"{case.name}, quiet", dose=QUIET, fault=(*case.fault, *quiet), sampled=False
        ),
    )


def sizes(case: Case, loud: tuple[str, ...], quiet: tuple[str, ...]) -> tuple[Case, Case]:
    """The case at two doses, by arguments that the script has when it is sound as well."""
    louder, quieter = doses(case)
    return replace(louder, base=(*case.base, *loud)), replace(quieter, base=(*case.base, *quiet))
