"""Evaluations that build the graphs of gradients."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
from torch.nn import functional as F

class Net(torch.nn.Module):
    pass

{decorator}
def evaluate(model, loader):
    model.eval()
    total, kept = 0.0, []
    for x, y in loader:
        {body}
    model.train()
    return total

def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(10):
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        {call}

main()
"""
PASS = "out = model(x); loss = F.cross_entropy(out, y); total += loss.item()"
CALL = "evaluate(model, held_out)"


def source(body: str = PASS, *, decorator: str = "", call: str = CALL) -> str:
    return SCRIPT.format(body=body, decorator=decorator, call=call)


@pytest.mark.parametrize(
    "body",
    [
        PASS,
        "out = model(x); total += (out.argmax(1) == y).sum()",
        "out = model(x); kept.append(out.detach())",
        "total += float(F.mse_loss(model(x), y))",
    ],
)
def test_without_no_grad(script: Read, body: str) -> None:
    (one,) = script(source(body)).evaluations_with_graphs
    assert "model(x)" in one.at.text
    assert one.keeps is None


@pytest.mark.parametrize(
    ("body", "keeps"),
    [
        ("out = model(x); total += F.cross_entropy(out, y)", "total += F.cross_entropy(out, y)"),
        ("out = model(x); kept.append(out.cpu())", "kept.append(out.cpu())"),
        ("kept.append(model(x))", "kept.append(model(x))"),
    ],
)
def test_that_keeps_the_graph_of_each_batch(script: Read, body: str, keeps: str) -> None:
    (one,) = script(source(body)).evaluations_with_graphs
    assert one.keeps is not None
    assert keeps in one.keeps.text


@pytest.mark.parametrize(
    "text",
    [
        source(decorator="@torch.no_grad()"),
        source(decorator="@torch.inference_mode()"),
        source("with torch.no_grad(): out = model(x)"),
        source(call=f"with torch.no_grad(): {CALL}"),
        source(call=f"torch.set_grad_enabled(False); {CALL}"),
        # The forces of a molecule are gradients.
        source(
            "e = model(x); f = torch.autograd.grad(e.sum(), x)[0]; total += f.abs().sum().item()"
        ),
        source("loss = model(x).sum(); loss.backward(); total += x.grad.norm().item()"),
        source("model.requires_grad_(False); out = model(x)"),
        source().replace("model.eval()", "model.eval().requires_grad_(False).to(device)"),
        source().replace("model.eval()", "model.requires_grad_(False); model.eval()"),
        source("model.train(); out = model(x)"),
        source("out = teacher(x)"),
    ],
)
def test_quiet(script: Read, text: str) -> None:
    assert script(text).evaluations_with_graphs == ()


def test_quiet_in_training_in_evaluation_mode(script: Read) -> None:
    text = source(decorator="@torch.no_grad()").replace(
        "for x, y in train:", "model.eval()\n        for x, y in train:"
    )
    assert script(text).evaluations_with_graphs == ()
