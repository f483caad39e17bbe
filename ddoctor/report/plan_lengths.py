"""The line of a plan's report on the lengths of samples."""

from __future__ import annotations

from collections.abc import Iterator

from ddoctor.evidence.plan import Plan
from ddoctor.report.wording import counted


def lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield label and text; nothing if the lengths are not known."""
    found = plan.lengths
    if found is None:
        return
    told = [
        f"{found.mean:,.0f} tokens in the mean of {counted(found.samples, 'sample')}, "
        f"{found.longest:,} at most"
    ]
    if found.cut:
        told.append(f"{found.cut / found.samples:.0%} of the samples are longer and cut")
    if found.packed:
        told.append("packed into full rows, so memory and time are those of full rows")
    else:
        told.append(
            f"memory is that of the longest, step times that of batches padded to "
            f"{found.padded:,.0f} in the mean: {found.padding:.0%} of their tokens are padding, "
            "which packing saves"
        )
    yield "lengths", "; ".join(told)
