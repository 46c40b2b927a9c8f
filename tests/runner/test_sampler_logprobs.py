"""Log-probabilities: the model's own distribution, the best few in order, ranks."""

import pytest
import torch

from ridgeline.runner.logprobs import top_logprobs


@pytest.mark.parametrize("vocab_size", [7, 64, 1000, 9000])
@pytest.mark.parametrize("k", [0, 1, 5, 20, 10000])
def test_values_ids_and_ranks(vocab_size: int, k: int) -> None:
    """Against log_softmax and a whole sort, at any k; a k beyond the vocabulary gives all of it."""
    logits = torch.randn(4, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * 4
    logits[2] = logits[2].round()
    logits[3] = 1.0
    tokens = torch.tensor([0, 3, vocab_size - 1, 2])
    ids, values, ranks = top_logprobs(logits, tokens, k)
    exact = logits.double().log_softmax(1)
    order = logits.sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(ids, torch.cat([tokens.unsqueeze(1), order[:, :k]], 1))
    torch.testing.assert_close(values.double(), exact.gather(1, ids), atol=2e-6, rtol=0)
    assert ranks.tolist() == [(logits[i] > logits[i, token]).sum() for i, token in enumerate(tokens.tolist())]
    assert values.untyped_storage().nbytes() <= 4 * values.numel(), "nothing of the vocabulary's size is kept"


def test_a_row_is_the_same_alone() -> None:
    """Other rows, and their larger k, change nothing in a row's report."""
    logits = (torch.randn(9, 700, generator=torch.Generator().manual_seed(0)) * 4).round()
    tokens = torch.arange(9)
    ids, values, ranks = top_logprobs(logits, tokens, 20)
    for row in range(9):
        alone = top_logprobs(logits[row : row + 1], tokens[row : row + 1], 3)
        assert torch.equal(alone[0][0], ids[row, :4]) and torch.equal(alone[1][0], values[row, :4])
        assert alone[2][0] == ranks[row]


def test_improbable_tokens_have_finite_values() -> None:
    """Even at 200 nats below the best (C-02: no -inf in the answer)."""
    logits = torch.zeros(1, 130)
    logits[0, 5] = 200.0
    _, values, ranks = top_logprobs(logits, torch.tensor([9]), 4)
    assert values.tolist() == [[-200.0, 0.0, -200.0, -200.0, -200.0]] and ranks.tolist() == [1]
