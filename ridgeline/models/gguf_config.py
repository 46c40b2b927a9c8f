"""GGUF metadata and tensor table -> the fields of a config.json, so that both formats share the family files.

Knows the metadata keys of the architectures that the families cover; an unknown key of the architecture is
refused like an unknown config field.
"""

from collections.abc import Iterator, Mapping

from ridgeline.base.errors import CheckpointError
from ridgeline.base.table import Table
from ridgeline.models.files.gguf import GgufFile, StringArray
from ridgeline.models.files.stored import StoredTensor, read_floats
from ridgeline.models.read import ConfigReader

ARCHITECTURES = Table("GGUF architecture", {  # -> model_type
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3", "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe"})
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_END_OF_TURN = frozenset({b"<|im_end|>", b"<|eot_id|>", b"<|eom_id|>", b"<|end|>"})
_CONTROL = 3  # in tokenizer.ggml.token_type


def gguf_config(file: GgufFile) -> dict[str, object]:
    """The model's config as config.json spells it. ConfigError for an architecture or key we do not have."""
    arch = str(file.metadata.get("general.architecture"))
    family = ARCHITECTURES[arch]
    prefix = f"{arch}."
    fields = {k.removeprefix(prefix): value for k, value in file.metadata.items() if k.startswith(prefix)}
    reader = ConfigReader(fields, f"{file.path.name}: {arch}")
    reader.inert(("vocab_size", "tensor_data_layout"))
    embed = file.tensors.get("token_embd.weight")
    if embed is None:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight is missing: this is no language model")
    heads = reader.size("attention.head_count")
    hidden = reader.size("embedding_length")
    head_dim = reader.size("attention.key_length", hidden // heads)
    if reader.integer("attention.value_length", head_dim) != head_dim:
        raise reader.refuse("attention.value_length", f"not supported: differs from key_length {head_dim}")
    config: dict[str, object] = {
        "model_type": family, "hidden_size": hidden, "num_attention_heads": heads, "head_dim": head_dim,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "num_hidden_layers": reader.integer("block_count"),
        "intermediate_size": reader.integer("feed_forward_length"),
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": reader.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": embed.shape[0], "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(reader, file.tensors, head_dim), "dtype": _dtype(file.tensors),
        "eos_token_id": list(dict.fromkeys(_end_ids(file.metadata))),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    } | _family_fields(arch, reader, file.tensors) | _experts(arch, reader)
    reader.finish()
    return config


def gguf_sampling(metadata: Mapping[str, object]) -> dict[str, object]:
    """The sampling defaults that a file recommends, in the spelling of generation_config.json."""
    names = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
             "penalty_repeat": "repetition_penalty"}
    return {ours: metadata[f"general.sampling.{theirs}"] for theirs, ours in names.items()
            if f"general.sampling.{theirs}" in metadata}


def _family_fields(arch: str, reader: ConfigReader, tensors: Mapping[str, StoredTensor]) -> dict[str, object]:
    """Biases by the tensors that are there; a window makes llama mistral, which GGUF calls llama too."""
    fields: dict[str, object] = {}
    if arch in ("llama", "phi3"):
        window = reader.optional_integer("attention.sliding_window") or None
        fields["sliding_window"] = window
        if arch == "llama" and window:
            fields["model_type"] = "mistral"
    if not arch.startswith("qwen2"):  # its bias is a matter of course
        fields["attention_bias"] = "blk.0.attn_q.bias" in tensors
    fields["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    return fields


def _experts(arch: str, reader: ConfigReader) -> dict[str, object]:
    """Of a mixture; llama with experts is mixtral. A file that does not say whether weights are made to sum
    to one means that they are in qwen3moe, and are not in qwen2moe."""
    count = reader.optional_integer("expert_count") or 0
    fields: dict[str, object] = {"num_experts_per_tok": reader.optional_integer("expert_used_count")}
    inner = reader.optional_integer("expert_feed_forward_length")
    if not count:
        return {}
    if arch == "llama":
        return fields | {"model_type": "mixtral", "num_local_experts": count} | (
            {"intermediate_size": inner} if inner else {})
    if arch not in ("qwen2moe", "qwen3moe"):
        raise reader.refuse("expert_count", "mixtures of experts are not supported in this family")
    return fields | {
        "num_experts": count, "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": reader.optional_integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": reader.flag("expert_weights_norm", arch == "qwen3moe")}


def _rope(reader: ConfigReader, tensors: Mapping[str, StoredTensor], head_dim: int) -> dict[str, object]:
    """The rotary section.

    Factors that the file holds as a tensor (llama3 scaling) divide each frequency: that is longrope with
    equal short and long factors and no attention factor.
    """
    kind = reader.text("rope.scaling.type", "none")
    rope: dict[str, object] = {
        "rope_type": "default" if kind == "none" else kind,
        "rope_theta": reader.number("rope.freq_base", 10_000.0),
        "partial_rotary_factor": reader.integer("rope.dimension_count", head_dim) / head_dim}
    original = reader.optional_integer("rope.scaling.original_context_length")
    factor = reader.optional_number("rope.scaling.factor")
    gain = reader.optional_number("rope.scaling.attn_factor")
    beta_fast = reader.optional_number("rope.scaling.yarn_beta_fast")
    beta_slow = reader.optional_number("rope.scaling.yarn_beta_slow")
    reader.inert(("rope.scaling.finetuned",))
    if "rope_freqs.weight" in tensors:
        factors = list(read_floats(tensors["rope_freqs.weight"]))
        return rope | {"rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                       "factor": 1.0, "attention_factor": 1.0}
    if "rope_factors_short.weight" in tensors:
        return rope | {"rope_type": "longrope", "attention_factor": gain,
                       "original_max_position_embeddings": original,
                       "short_factor": list(read_floats(tensors["rope_factors_short.weight"])),
                       "long_factor": list(read_floats(tensors["rope_factors_long.weight"]))}
    if kind == "linear":
        return rope | {"factor": factor}
    if kind == "yarn":
        return rope | {"factor": factor, "original_max_position_embeddings": original, "beta_fast": beta_fast,
                       "beta_slow": beta_slow}
    return rope


def _dtype(tensors: Mapping[str, StoredTensor]) -> str:
    """The float type of the matrices, bfloat16 when they are quantized or mixed."""
    formats = {t.format for t in tensors.values() if len(t.shape) > 1}
    only = formats.pop() if len(formats) == 1 else ""
    return only if only in ("float32", "float16", "bfloat16") else "bfloat16"


def _end_ids(metadata: Mapping[str, object]) -> Iterator[int]:
    """Every id that ends a text: the file's eos, eot and eom, and control tokens known to end a turn."""
    for name in ("eos", "eot", "eom"):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int):
            yield token
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, StringArray) and isinstance(types, memoryview):
        for index, kind in enumerate(types):
            if kind == _CONTROL and tokens.raw(index) in _END_OF_TURN:
                yield index
