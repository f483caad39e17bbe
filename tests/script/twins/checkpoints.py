"""Options of a model that exclude its checkpoints."""

from __future__ import annotations

from tests.script.sources import SET_UP, ddp

HEAD = "from transformers import AutoModelForCausalLM\n"
ENABLES = "net.gradient_checkpointing_enable()\n"
MODEL = "net = AutoModelForCausalLM.from_pretrained('a/b'{})\n"
ASKED = "net.config.use_cache = {}\n"


def tuned(set_up: str, *, end: str = "") -> str:
    wrapped = SET_UP.replace("Net()", "net").replace("model =", f"{set_up}model =")
    return ddp(head=HEAD, set_up=wrapped) + end


TWINS = {
    "a cache that a line switches on, beside checkpoints": (
        "launch-config-invalid",
        tuned(MODEL.format("") + ASKED.format(True) + ENABLES),
        tuned(MODEL.format("") + ASKED.format(False) + ENABLES),
        tuned(MODEL.format("") + ASKED.format(True)),
        tuned(MODEL.format("") + ENABLES),
        tuned(MODEL.format("") + ENABLES, end="\n" + ASKED.format(True)),
        tuned(MODEL.format("") + ASKED.format(True) + ENABLES, end="\nmodel.generate(words)\n"),
    ),
}
