"""What only some families' checkpoints have, beside their reference models: layers that are not run, layers
without keys of their own."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.spec.cache import Paged, Shared, Window
from tests.oracle.oracles import Oracle, text
from tests.oracle.ours import Ours


def test_a_layer_that_predicts_the_token_after_the_next_is_not_read(
        oracle: Callable[[str], Oracle], tmp_path: Path) -> None:
    """DeepSeek-V3 as published has one behind its last layer."""
    one = oracle("deepseek_v3")
    (tmp_path / "config.json").write_bytes((one.folder / "config.json").read_bytes())
    more = {"model.layers.3.eh_proj.weight": torch.zeros(64, 128)}
    save_file(load_file(one.folder / "model.safetensors") | more, tmp_path / "model.safetensors")
    assert torch.equal(Ours(tmp_path).logits(text(9)), one.ours.logits(text(9)))


def test_which_layers_of_gemma4_own_what_they_read(oracle: Callable[[str], Oracle]) -> None:
    spec = oracle("gemma4_text").ours.spec
    assert [type(layer[0]) for layer in spec.cache(1)] == [Window, Paged, Window, Paged, Shared, Shared]
    attention = spec.layers[5].blocks[0][1]
    assert isinstance(attention, AttentionSpec) and attention.reads_layer == 3
