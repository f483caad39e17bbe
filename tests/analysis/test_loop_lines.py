from __future__ import annotations

import pytest

from ddoctor.analysis import loop_lines
from ddoctor.evidence.frames import Frame


def does(text: str) -> str:
    return loop_lines.does(Frame(file="train.py", line=3, function="main", text=text))


@pytest.mark.parametrize(
    "text",
    [
        "logger.info('loss %f', loss)",
        "logging.warning(text)",
        "log.info(text)",
        "self.log('loss', loss)",
        "self.log(name, loss)",
        "self.log_dict(metrics)",
        "log_metrics(step, loss)",
        "log('step', step)",
        "log(f'{step}: {loss}')",
        "run.log_image(sample)",
    ],
)
def test_a_line_that_logs(text: str) -> None:
    assert does(text) == "logs"


@pytest.mark.parametrize(
    "text",
    [
        "return Normal(mean, std).log_prob(action).sum(-1)",
        "ratio = (log_prob(mean, std, action) - before).exp()",
        "log_probs = gather_log_probs(logits)",
        "old = policy.log_probs(actions)",
        "loss = -torch.log(odds).mean()",
        "entropy = std.log().sum()",
        "penalty = np.log(count)",
        "share = math.log(count)",
        "chosen = F.log_softmax(logits, -1)",
        "whole = logits.logsumexp(-1)",
        "small = torch.log1p(x)",
        "spread = self.log_std(hidden)",
        "weight = log_sigmoid(difference)",
    ],
)
def test_a_logarithm(text: str) -> None:
    assert does(text) == ""
