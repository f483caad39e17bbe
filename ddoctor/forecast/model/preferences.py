"""The steps of DPO and GRPO, in which a causal language model scores each token of its answers.

The reference has the same layers as the model. So on fake tensors the model itself runs as the
reference, without gradients: all it makes has the same sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ddoctor.errors import DoctorError
from ddoctor.forecast.method import Method
from ddoctor.forecast.model.outcome import Outcome

FULL = (torch.float32, torch.float64)
Scores = Callable[[], Tensor]
"""Returns the log-probability of each token: samples × tokens."""


def replace_step(model: nn.Module, method: Method) -> nn.Module:
    """Give a causal language model of transformers the step of this method.

    Raises:
        DoctorError: it is none.
    """
    outputs: Any = getattr(model, "get_output_embeddings", lambda: None)
    if outputs() is None or not type(model).__name__.endswith(("CausalLM", "LMHeadModel")):
        raise DoctorError(
            f"--method {method.text} goes with causal language models, and "
            f"{type(model).__name__} is none"
        )
    run = model.forward

    def forward(self: nn.Module, labels: Tensor, **inputs: Any) -> Outcome:
        def scores() -> Tensor:
            logits: Tensor = run(**inputs, use_cache=False).logits
            if method.generates:
                logits = logits / 1.0  # by the temperature, in a copy
            return selected(logits, labels)

        if method.generates:
            return Outcome(loss=_grpo(scores, compared=method.compares))
        return Outcome(loss=_dpo(scores))

    model.forward = MethodType(forward, model)
    return model


def selected(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label: samples × tokens.

    As TRL's selective_log_softmax (trl/trainer/utils.py), sample by sample: in half precision by
    log_softmax, which is more exact than the sum of exponentials that full precision takes.
    """
    index = labels.unsqueeze(-1)
    if logits.dtype in FULL:
        chosen = torch.gather(logits, -1, index).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(one, dim=-1) for one in logits])
    rows = zip(logits, index, strict=True)
    return torch.stack(
        [one.log_softmax(dim=-1).gather(-1, places).squeeze(-1) for one, places in rows]
    )


def _dpo(scores: Scores) -> Tensor:
    """Return the loss of DPO (arXiv 2305.18290, equation 7): chosen rows, then rejected ones."""
    own = scores().sum(-1)
    with torch.no_grad():
        reference = scores().sum(-1)
    chosen, rejected = (own - reference).chunk(2)
    return -logsigmoid(0.1 * (chosen - rejected)).mean()


def _grpo(scores: Scores, *, compared: bool) -> Tensor:
    """Return the loss of GRPO (arXiv 2402.03300, equation 3), with advantages of 1.

    The reference scores the completions before the step.
    """
    reference = None
    if compared:
        with torch.no_grad():
            reference = scores()
    own = scores()
    each = -torch.exp(own - own.detach())
    if reference is not None:
        each = each + torch.exp(reference - own) - (reference - own) - 1
    return each.mean()
