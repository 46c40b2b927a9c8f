"""Folders with a tiny Llama or Mamba-2 for random weights, a byte-level tokenizer and a chat template."""

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ridgeline.frontend.spelling import BYTE_OF_CHARACTER

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 264,
    "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 257, "eos_token_id": 256,
}  # fmt: skip
MAMBA = {
    "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 32, "num_heads": 8,
    "head_dim": 8, "state_size": 16, "n_groups": 2, "num_hidden_layers": 2, "vocab_size": 264,
    "torch_dtype": "float32", "eos_token_id": 256, "tie_word_embeddings": True,
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}<|start|>"


def tiny_folder(path: Path, *, tokenizer: bool = True, **config: object) -> Path:
    """config replaces fields of CONFIG. Without a tokenizer the model takes token ids only."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    if not tokenizer:
        return path
    vocabulary = {piece: i for i, piece in enumerate([*BYTE_OF_CHARACTER, "<|end|>", "<|start|>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<|end|>", "<|start|>")])
    backend.save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "bos_token": "<|start|>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def mamba_folder(path: Path) -> Path:
    """With states in place of a cache of tokens, and the same tokenizer."""
    (tiny_folder(path) / "config.json").write_text(json.dumps(MAMBA))
    return path
