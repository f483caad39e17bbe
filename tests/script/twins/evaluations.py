"""Evaluations under accelerate that every rank makes in full."""

from __future__ import annotations

from tests.script.sources import ACCELERATE

PREPARE = "loader = accelerator.prepare(net(), adam(), loader)"
END = "        accelerator.wait_for_everyone()\n"
GATHERS = "        total = accelerator.gather_for_metrics(total).sum()\n"
READS = """\
        with torch.no_grad():
            for rows in {}:
                total += model(**rows).loss
"""
SCORES = """
def score(model, batches):
    for number, rows in enumerate(batches):
        model(**rows)

"""


def evaluated(reads: str, *, made: str = "", prepared: bool = False) -> str:
    held = made or "held_out_eval = DataLoader(load(args), num_workers=4, persistent_workers=True)"
    prepare = PREPARE.replace("loader =", "loader, held_out_eval =").replace(
        "loader)", "loader, held_out_eval)"
    )
    return (
        ACCELERATE.replace("    model, optimizer", f"    {held}\n    model, optimizer")
        .replace(PREPARE, prepare if prepared else PREPARE)
        .replace(END, reads + GATHERS + END)
        .replace("def main", f"{SCORES}def main")
    )


CALLED = "        score(model, held_out_eval)\n"
ON_ONE = f"        if accelerator.is_main_process:\n    {CALLED}"
TWINS = {
    "an evaluation that is not prepared": (
        "duplicate-data-across-ranks",
        evaluated(READS.format("held_out_eval")),
        evaluated(READS.format("held_out_eval"), prepared=True),
        evaluated(
            "        held_out_eval = accelerator.prepare(held_out_eval)\n"
            + READS.format("held_out_eval")
        ),
        evaluated(
            READS.format("held_out_eval").replace(
                "with torch.no_grad()", "if accelerator.is_main_process"
            )
        ),
        evaluated(
            READS.format("held_out_eval"),
            made="held_out_eval = DataLoader(load(args), sampler=mine(), num_workers=2, "
            "persistent_workers=True)",
        ),
    ),
    "an evaluation in a function": (
        "duplicate-data-across-ranks",
        evaluated(CALLED),
        evaluated(CALLED, prepared=True),
        evaluated(ON_ONE),
        evaluated(CALLED.replace("score(", "other(")),
    ),
}
