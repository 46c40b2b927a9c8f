"""Opening checkpoints: folders and GGUF files become one description, and what does not fit is told by
name."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.models.checkpoint import Checkpoint, open_checkpoint, open_shape

CONFIG: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def arrays() -> dict[str, NDArray[np.float32]]:
    layer, shapes = "model.layers.0", {"model.embed_tokens.weight": (40, 16), "model.norm.weight": (16,)}
    shapes |= {
        f"{layer}.{n}.weight": s
        for n, s in {
            "input_layernorm": (16,),
            "post_attention_layernorm": (16,),
            "self_attn.q_proj": (16, 16),
            "self_attn.k_proj": (8, 16),
            "self_attn.v_proj": (8, 16),
            "self_attn.o_proj": (16, 16),
            "mlp.gate_proj": (24, 16),
            "mlp.up_proj": (24, 16),
            "mlp.down_proj": (16, 24),
        }.items()
    }
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def write_folder(
    folder: Path, tensors: dict[str, NDArray[np.float32]] | None = None, **config: object
) -> Path:
    save_file(tensors or arrays(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


def test_folder(tmp_path: Path) -> None:
    """Protects: a plain folder opens with its spec, tensors, sources, name and the generation config's
    additions."""
    (tmp_path / "generation_config.json").write_text(
        json.dumps(
            {
                "eos_token_id": [7, 2],
                "temperature": 0.6,
                "top_p": 0.9,
                "top_k": 20,
                "repetition_penalty": 1.1,
                "do_sample": True,
                "max_new_tokens": 100,
            }
        )
    )
    found = open_checkpoint(write_folder(tmp_path))
    assert found.name == tmp_path.name and not found.dummy and found.spec.tied_embeddings
    assert found.spec.eos_token_ids == (2, 7)
    assert found.sampling_defaults == {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
    }
    assert [p.name for p in found.sources["layers.0.mlp.gate_up.weight"].parts] == [
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]


def test_padded_vocabulary_is_the_stored_rows(tmp_path: Path) -> None:
    """Protects: an embedding with more rows than vocab_size is taken as stored; fewer rows are an error."""
    folder = write_folder(tmp_path, {**arrays(), "model.embed_tokens.weight": np.ones((48, 16), np.float32)})
    assert open_checkpoint(folder).spec.vocab_size == 48
    write_folder(tmp_path, {**arrays(), "model.embed_tokens.weight": np.ones((32, 16), np.float32)})
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is \[32, 16\].*needs \[40, 16\]"):
        open_checkpoint(folder)


def test_overrides_replace_and_drop_fields(tmp_path: Path) -> None:
    """Protects: hf_overrides reach the reader, so that an unknown field can be dropped or a known one set."""
    folder = write_folder(tmp_path, mystery=3)
    with pytest.raises(ConfigError, match="mystery"):
        open_checkpoint(folder)
    found = open_checkpoint(folder, overrides={"mystery": None, "rope_theta": 99.0})
    attention = found.spec.layers[0].blocks[0][1]
    assert isinstance(attention, AttentionSpec) and attention.rope.theta == 99.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"model.layers.0.self_attn.q_proj.bias": np.ones(16, np.float32)}, "q_proj.bias has no place"),
        (
            {"model.layers.0.mlp.down_proj.weight": np.ones((24, 16), np.float32)},
            "wrong shape.*down_proj.*transposed",
        ),
        (
            {
                "model.layers.0.self_attn.k_proj.weight": np.ones((16, 16), np.float32),
                "model.layers.0.self_attn.v_proj.weight": None,
            },
            "v_proj.weight is missing",
        ),
        (
            {
                "model.layers.0.self_attn.k_proj.weight": np.ones((4, 16), np.float32),
                "model.layers.0.self_attn.v_proj.weight": np.ones((12, 16), np.float32),
            },
            r"k_proj.weight is \[4, 16\]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, NDArray[np.float32] | None], words: str
) -> None:
    """Protects: missing, left-over and misshapen tensors stop the start before a weight is read."""
    tensors = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    with pytest.raises(CheckpointError, match=words) as error:
        open_checkpoint(write_folder(tmp_path, tensors))
    assert str(tmp_path) in str(error.value)


def test_harmless_extra_tensors(tmp_path: Path) -> None:
    """Protects: a tied head stored twice and old rotary buffers do not stop a start."""
    extra = {
        "lm_head.weight": np.ones((40, 16), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32),
    }
    open_checkpoint(write_folder(tmp_path, {**arrays(), **extra}))


def test_broken_json_and_missing_parts(tmp_path: Path) -> None:
    """Protects: a cut config, a folder without one, a path that is not there, an unknown load format."""
    with pytest.raises(CheckpointError, match=r"no config.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    with pytest.raises(CheckpointError, match=r"config\.json: not readable as JSON.*incomplete"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="load_format 'fast'"):
        open_checkpoint(tmp_path, load_format="fast")


def test_dummy_needs_a_config_only(tmp_path: Path) -> None:
    """Protects: load_format dummy opens a folder without weights, and a shape without a folder."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = open_checkpoint(tmp_path, load_format="dummy")
    assert found.dummy and not found.tensors and found.spec.vocab_size == 40
    shape = open_shape("Qwen3-0.6B", overrides={"num_hidden_layers": 2})
    assert shape.dummy and shape.path is None and shape.name == "qwen3-0.6b" and len(shape.spec.layers) == 2
    with pytest.raises(ConfigError, match=r"known are .*llama-2-7b"):
        open_shape("qwen9-1b")


def write_gguf(
    path: Path,
    arch: str = "llama",
    *,
    tied: bool = True,
    metadata: dict[str, object] | None = None,
    tensors: dict[str, NDArray[np.float32]] | None = None,
) -> Checkpoint:
    """A tiny GGUF model; metadata keys without a dot in front are the architecture's."""
    writer = GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_token_list(["<unk>", "a", "<|im_end|>", "b", "<|end|>"])
    writer.add_token_types([2, 1, 3, 1, 3])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    for key, value in (metadata or {}).items():
        key = key if key.startswith("general.") else f"{arch}.{key}"
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)
    names = {"token_embd": (40, 16), "output_norm": (16,)} | ({} if tied else {"output": (40, 16)})
    names |= {
        f"blk.0.{n}": s
        for n, s in {
            "attn_norm": (16,),
            "ffn_norm": (16,),
            "attn_output": (16, 16),
            "ffn_down": (16, 24),
        }.items()
    }
    if arch == "phi3":
        names |= {"blk.0.attn_qkv": (32, 16), "blk.0.ffn_up": (48, 16)}
    else:
        names |= {
            f"blk.0.{n}": s
            for n, s in {
                "attn_q": (16, 16),
                "attn_k": (8, 16),
                "attn_v": (8, 16),
                "ffn_gate": (24, 16),
                "ffn_up": (24, 16),
            }.items()
        }
    if arch == "qwen3":
        names |= {"blk.0.attn_q_norm": (8,), "blk.0.attn_k_norm": (8,)}
    found = {f"{name}.weight": np.ones(shape, np.float32) for name, shape in names.items()} | (tensors or {})
    if arch == "qwen2":
        found |= {
            f"blk.0.attn_{n}.bias": np.ones(rows, np.float32) for n, rows in (("q", 16), ("k", 8), ("v", 8))
        }
    for name, array in found.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path)


def attention(of: Checkpoint) -> AttentionSpec:
    block = of.spec.layers[0].blocks[0][1]
    assert isinstance(block, AttentionSpec)
    return block


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "phi3"])
def test_gguf_of_each_architecture(tmp_path: Path, arch: str) -> None:
    """Protects: GGUF metadata becomes the same config, tied or not, with end ids of the chat format."""
    for tied in (True, False):
        found = write_gguf(tmp_path / f"{arch}-{tied}.gguf", arch, tied=tied)
        assert found.name == f"{arch}-{tied}" and found.spec.family == arch
        assert (
            found.spec.tied_embeddings is tied
            and found.spec.vocab_size == 40
            and found.spec.dtype == "float32"
        )
        assert found.spec.eos_token_ids == (2, 4) and found.spec.bos_token_id == 1
        assert (found.spec.norm_eps, attention(found).rope.theta) == (1e-5, 50000.0)
        assert (attention(found).num_kv_heads, attention(found).head_dim) == (1, 8)
        assert attention(found).qkv_bias is (arch == "qwen2") and attention(found).qk_norm is (
            arch == "qwen3"
        )


def test_gguf_rotary_scaling(tmp_path: Path) -> None:
    """Protects: linear and yarn keys, llama3's factors as a tensor, Phi-3's two factor tensors, a window."""
    linear = write_gguf(
        tmp_path / "a.gguf", metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    )
    assert (attention(linear).rope.kind, attention(linear).rope.factor) == ("linear", 4.0)
    yarn = attention(
        write_gguf(
            tmp_path / "b.gguf",
            "qwen2",
            metadata={
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 16,
            },
        )
    ).rope
    assert (yarn.kind, yarn.factor, yarn.original_max_position) == ("yarn", 4.0, 16)
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    llama3 = attention(write_gguf(tmp_path / "c.gguf", tensors={"rope_freqs.weight": factors})).rope
    assert (
        llama3.short_factor == llama3.long_factor == (1.0, 2.0, 4.0, 8.0) and llama3.attention_factor == 1.0
    )
    phi3 = attention(
        write_gguf(
            tmp_path / "d.gguf",
            "phi3",
            metadata={
                "rope.scaling.original_context_length": 16,
                "rope.scaling.attn_factor": 1.25,
                "attention.sliding_window": 12,
            },
            tensors={"rope_factors_short.weight": factors, "rope_factors_long.weight": 2 * factors},
        )
    )
    assert (phi3.rope.original_max_position, phi3.rope.attention_factor, phi3.window_tokens) == (16, 1.25, 12)
    assert phi3.rope.long_factor == (2.0, 4.0, 8.0, 16.0)
    mistral = write_gguf(tmp_path / "e.gguf", metadata={"attention.sliding_window": 12})
    assert mistral.spec.family == "mistral" and attention(mistral).window_tokens == 12


def test_gguf_of_a_gemma(tmp_path: Path) -> None:
    """Protects: what a file leaves unsaid: the scale of the scores, which is not a head's width in the models
    of 27B; windows in five layers of six, with a rotary base of their own, or as the file says."""
    found = {}
    for layers, pattern in ((6, {}), (62, {}), (6, {"attention.sliding_window_pattern": 2})):
        path = tmp_path / "m.gguf"
        writer = GGUFWriter(path, "gemma3")
        for add, number in ((writer.add_block_count, layers), (writer.add_context_length, 64),
                            (writer.add_embedding_length, 96), (writer.add_feed_forward_length, 24),
                            (writer.add_head_count, 4), (writer.add_key_length, 16),
                            (writer.add_value_length, 16), (writer.add_layer_norm_rms_eps, 1e-6),
                            (writer.add_sliding_window, 8), (writer.add_rope_freq_base, 1e6)):
            add(number)
        for key, value in pattern.items():
            writer.add_uint32(f"gemma3.{key}", value)
        writer.add_tensor("token_embd.weight", np.ones((8, 96), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        spec = open_checkpoint(path, load_format="dummy").spec
        blocks = [layer.blocks[0][1] for layer in spec.layers[:6]]
        found[layers, len(pattern)] = [(block.scale, block.window_tokens, block.rope.theta)
                                       for block in blocks if isinstance(block, AttentionSpec)]
    local, whole = (0.25, 8, 1e4), (0.25, None, 1e6)
    assert found[6, 0] == [local] * 5 + [whole] and found[6, 1] == [local, whole] * 3
    assert [scale for scale, *_ in found[62, 0]] == [24**-0.5] * 6


def test_gguf_refusals(tmp_path: Path) -> None:
    """Protects: other architectures, unknown keys, experts and unequal head widths are refused by name."""
    for metadata, words in (
        ({"attention.clamp_kqv": 3.0}, "unknown field attention.clamp_kqv"),
        ({"expert_count": 8}, "num_experts_per_tok is missing"),
        ({"attention.key_length": 8, "attention.value_length": 4}, "differs from key_length 8"),
    ):
        with pytest.raises(ConfigError, match=words):
            write_gguf(tmp_path / "x.gguf", metadata=metadata)
    with pytest.raises(ConfigError, match="no GGUF architecture named 'mamba'"):
        write_gguf(tmp_path / "y.gguf", "mamba")


def test_gguf_sampling_defaults(tmp_path: Path) -> None:
    """Protects: recommended sampling of newer GGUF files arrives by SamplingParams' names."""
    found = write_gguf(
        tmp_path / "x.gguf",
        metadata={
            "general.sampling.temp": 0.7,
            "general.sampling.top_k": 20,
            "general.sampling.penalty_repeat": 1.05,
        },
    )
    assert found.sampling_defaults == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}


def test_folder_with_one_gguf(tmp_path: Path) -> None:
    """Protects: a folder that holds one GGUF file is that file; with two the user is asked to name one."""
    write_gguf(tmp_path / "a.gguf")
    assert open_checkpoint(tmp_path).spec.vocab_size == 40
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"a\.gguf, b\.gguf: name one"):
        open_checkpoint(tmp_path)
