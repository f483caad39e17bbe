"""Settings in the words of the framework that runs the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ddoctor.analysis.derived import Derived
from ddoctor.evidence.frameworks import KnownFrameworks
from ddoctor.evidence.training import TrainingRun


@dataclass(frozen=True, kw_only=True)
class FrameworkWords(Derived):
    """How the script writes a setting."""

    known: KnownFrameworks
    framework: str = ""
    """What runs the loop; empty: the script itself."""

    @classmethod
    def derive(cls, known: KnownFrameworks, run: TrainingRun | None) -> FrameworkWords:
        """The words of the framework that was recorded."""
        return cls(known=known, framework=run.framework if run is not None else "")

    def of(self, framework: str) -> FrameworkWords:
        """The words of another framework."""
        return replace(self, framework=framework)

    def has(self, setting: str) -> bool:
        """Whether the framework writes the setting in its own way."""
        return bool(self.known.writing(self.framework, setting))

    def written(self, setting: str, value: object, plain: str = "") -> str:
        """What to paste for a setting; ``plain``: if the framework has no own words."""
        own = self.known.writing(self.framework, setting)
        return own.format(value=value) if own else plain

    def of_loader(self, place: str, options: Mapping[str, object]) -> str:
        """What sets options of the loader that is made at this place.

        ``place``: the user's line; it may call the framework.
        """
        every = ", ".join(f"{option}={value}" for option, value in options.items())
        lines = [f"DataLoader(…, {every})"]
        if all(map(self.has, options)):
            lines = [self.written(*one) for one in options.items()]
        return "\n".join(lines) + (f"  # {place}" if place else "")

    def of_ddp(self, option: str, value: bool | int) -> str:
        """What sets an option of what makes the DDP module: PyTorch, or a framework."""
        plain = f"model = DistributedDataParallel(model, ..., {option}={value})"
        return self.written(option, value, plain)
