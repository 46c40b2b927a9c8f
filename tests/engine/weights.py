"""A folder with a tiny Llama and weights of its own in safetensors."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.engine.tiny import CONFIG, tiny_folder


def saved_folder(path: Path, *, seed: int, **config: object) -> Path:
    """As `tiny_folder`, with random weights of that seed."""
    folder, known = tiny_folder(path, **config), CONFIG | config
    hidden, inner = int(str(known["hidden_size"])), int(str(known["intermediate_size"]))
    kv = hidden * int(str(known["num_key_value_heads"])) // int(str(known["num_attention_heads"]))
    shapes = {"embed_tokens": (int(str(known["vocab_size"])), hidden), "norm": (hidden,)}
    for layer in range(int(str(known["num_hidden_layers"]))):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner)}.items()}
    drawn = np.random.default_rng(seed)
    save_file({f"model.{name}.weight": (
        np.ones(shape, np.float32) if len(shape) == 1 else drawn.normal(0, 0.3, shape).astype(np.float32))
        for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder
