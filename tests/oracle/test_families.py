"""Each family against its tiny random transformers model: float32, CPU, logits within 1e-4 (gated delta
1e-3), whole, in odd chunks and token by token; and in bfloat16."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ridgeline.models.families import FAMILIES, model_spec
from tests.features import cases_running, each_running
from tests.oracle.cases import CASES, GQA, TOLERANCE, tolerance
from tests.oracle.oracles import Oracle, text
from tests.oracle.ours import Ours
from tests.oracle.reference import old_spelling, reference_config, reference_logits, reference_model

YOUNG = {"mistral_large4"}  # no release before transformers 5 knew them
BFLOAT16_NOISE = 0.1  # share of the logits' deviation; each argument of a product has eight bits


def pieces(length: int, seed: int) -> list[int]:
    """Odd chunks, then single tokens for the last few."""
    random, sizes, left = np.random.default_rng(seed), [], length - 3
    while left > 0:
        sizes.append(min(left, int(random.choice([1, 5, 7, 13]))))
        left -= sizes[-1]
    return [*sizes, 1, 1, 1]


@pytest.mark.parametrize("case", cases_running(
    CASES, "logits whole", "in chunks", "token by token", "safetensors folder"))
def test_logits_equal_the_reference(oracle: Callable[[str], Oracle], case: str) -> None:
    """Protects: config, names, row order, rotary embeddings, windows, norms, biases, routers and states of
    each family, on our own loader, modules and paged cache."""
    one = oracle(case)
    runs: list[tuple[int, list[int] | None]] = [(1, None), (77, None), (77, pieces(77, seed=77))]
    if case in FAMILIES:
        runs.append((21, [1] * 21))
    for length, chunks in runs:
        found = one.ours.logits(text(length), chunks)
        assert (found - one.want(length)).abs().max() < tolerance(case), (length, chunks)


@pytest.mark.parametrize("case", [case for case, (family, fields) in CASES.items()
                                  if family not in YOUNG
                                  and not {"layer_types", "attn_layer_indices", "num_heads"} & fields.keys()])
def test_the_old_spelling_is_the_same_model(tmp_path: Path, case: str) -> None:
    """Protects: a config as releases before transformers 5 wrote it describes what the new one does."""
    family, fields = CASES[case]
    reference_config(family, **fields, dtype="float32").save_pretrained(tmp_path)
    new = model_spec(json.loads((tmp_path / "config.json").read_text()))
    old_spelling(tmp_path)
    assert model_spec(json.loads((tmp_path / "config.json").read_text())) == new


@pytest.mark.parametrize("family", each_running(FAMILIES, "bfloat16"))
def test_bfloat16_is_float32_with_fewer_bits(oracle: Callable[[str], Oracle], family: str) -> None:
    """Whole and token by token; a token whose router changed its mind is noise too, hence the median."""
    one = oracle(family)
    rough, want = Ours(one.folder, torch.bfloat16), one.want(77)
    for chunks in (None, [70, *[1] * 7]):
        found = rough.logits(text(77), chunks)
        assert found.isfinite().all()
        assert ((found - want).std(-1) / want.std(-1)).median() < BFLOAT16_NOISE, chunks


def test_sharded_checkpoint(tmp_path: Path) -> None:
    """Protects: a folder of several shards with an index is the same model."""
    model = reference_model("llama", **GQA)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    assert (Ours(tmp_path).logits(text(21)) - reference_logits(model, text(21))).abs().max() < TOLERANCE
