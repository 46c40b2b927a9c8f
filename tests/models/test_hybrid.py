"""Protects what families with recurrent states refuse: a config that asks for what is not there is named by
field."""

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.models.families import model_spec
from tests.ledger.test_states import ENDS, MODELS


@pytest.mark.parametrize(("family", "fields", "said"), [
    ("mamba2", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
    ("mamba2", {"num_heads": 23}, "num_heads = 23: times 64 is not 2 x hidden_size = 1536"),
    ("mamba2", {"n_groups": 5}, "n_groups = 5: does not divide"),
    ("mamba2", {"hidden_act": "gelu"}, "hidden_act = 'gelu': not supported: silu is"),
    ("mamba2", {"use_mem_eff_path": True}, "unknown field use_mem_eff_path"),
    ("bamba", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate = False: not supported: True is"),
    ("qwen3_5_text", {"linear_num_key_heads": 3}, "linear_num_key_heads"),
    ("qwen3_5_text", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen3_5_text", {"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
])
def test_what_is_not_there_is_refused_by_name(family: str, fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model_spec({"model_type": family} | ENDS | MODELS[family] | fields)


def test_infinity_as_transformers_writes_it_and_as_json_has_it() -> None:
    limit = {"time_step_limit": [0.0, float("inf")]}
    assert model_spec({"model_type": "mamba2"} | ENDS | MODELS["mamba2"] | limit).num_params > 10**8
