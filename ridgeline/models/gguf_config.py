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
    "qwen3moe": "qwen3_moe", "gemma2": "gemma2", "gemma3": "gemma3_text", "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2"})
_GEMMA_27B = {"gemma2": 46, "gemma3": 62}  # layers of the ones whose scores are not scaled by a head's width
_SIGMOID = 2  # of expert_gating_func
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_END_OF_TURN = frozenset({b"<|im_end|>", b"<|eot_id|>", b"<|eom_id|>", b"<|end|>", b"<end_of_turn>",
                          b"<|return|>", b"<|call|>"})
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
    latent = _latent(reader) if arch == "deepseek2" else {}
    head_dim = reader.size("attention.key_length", hidden // heads)
    if reader.integer("attention.value_length", head_dim) != head_dim and not latent:
        raise reader.refuse("attention.value_length", f"not supported: differs from key_length {head_dim}")
    head_dim = reader.size("rope.dimension_count") if latent else head_dim
    config: dict[str, object] = {
        "model_type": family, "hidden_size": hidden, "num_attention_heads": heads, "head_dim": head_dim,
        "num_key_value_heads": reader.integer("attention.head_count_kv", heads),
        "num_hidden_layers": reader.integer("block_count"),
        "intermediate_size": reader.integer("feed_forward_length"),
        "max_position_embeddings": reader.integer("context_length"),
        "rms_norm_eps": reader.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": embed.shape[0], "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(arch, reader, file.tensors, head_dim), "dtype": _dtype(file.tensors),
        "eos_token_id": list(dict.fromkeys(_end_ids(file.metadata))),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    } | latent | _family_fields(arch, reader, file.tensors) | _experts(arch, reader)
    if arch.startswith("gemma"):
        config |= _gemma(arch, reader, config)
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
    if arch in ("llama", "phi3", "gemma2", "gemma3", "gpt-oss"):
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
    if arch in ("llama", "gpt-oss"):
        return fields | {"model_type": "mixtral" if arch == "llama" else "gpt_oss",
                         "num_local_experts": count} | ({"intermediate_size": inner} if inner else {})
    if arch == "deepseek2":
        return fields | {"n_routed_experts": count, "moe_intermediate_size": inner} | _grouped(reader)
    if arch not in ("qwen2moe", "qwen3moe"):
        raise reader.refuse("expert_count", "mixtures of experts are not supported in this family")
    return fields | {
        "num_experts": count, "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": reader.optional_integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": reader.flag("expert_weights_norm", arch == "qwen3moe")}


def _grouped(reader: ConfigReader) -> dict[str, object]:
    """DeepSeek's router. A sigmoid makes it V3; a file that names no groups has none."""
    sigmoid = reader.integer("expert_gating_func", 1) == _SIGMOID
    groups = reader.optional_integer("expert_group_count") or 1
    method = "noaux_tc" if sigmoid else "greedy" if groups == 1 else "group_limited_greedy"
    return {
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2", "topk_method": method, "n_group": groups,
        "topk_group": reader.optional_integer("expert_group_used_count") or 1,
        "n_shared_experts": reader.integer("expert_shared_count"),
        "first_k_dense_replace": reader.integer("leading_dense_block_count"),
        "routed_scaling_factor": reader.number("expert_weights_scale", 1.0),
        "norm_topk_prob": reader.flag("expert_weights_norm", False)}


def _latent(reader: ConfigReader) -> dict[str, object]:
    """Widths of latent attention. Where the _mla fields stand, the others are those of an absorbed head."""
    rotary = reader.size("rope.dimension_count")
    keys, values = (reader.size(f"attention.{name}_length_mla", reader.size(f"attention.{name}_length"))
                    for name in ("key", "value"))
    return {"q_lora_rank": reader.optional_integer("attention.q_lora_rank"),
            "kv_lora_rank": reader.size("attention.kv_lora_rank"), "qk_nope_head_dim": keys - rotary,
            "qk_rope_head_dim": rotary, "v_head_dim": values}


def _gemma(arch: str, reader: ConfigReader, config: Mapping[str, object]) -> dict[str, object]:
    """What a file does not say of a Gemma is the family's own, as is the rotary base of windowed layers."""
    heads, hidden = reader.size("attention.head_count"), reader.size("embedding_length")
    wide = reader.integer("block_count") == _GEMMA_27B[arch]
    fields: dict[str, object] = {"query_pre_attn_scalar": hidden // heads if wide else config["head_dim"]}
    stated = {name: reader.optional_number(name) for name in (
        "attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window_pattern")}
    fields |= {name.removeprefix("attention."): value for name, value in stated.items() if value is not None}
    if arch == "gemma3":
        local = {"rope_type": "default", "rope_theta": reader.number("rope.freq_base_swa", 10_000.0)}
        fields["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": local}
    return fields


def _rope(arch: str, reader: ConfigReader, tensors: Mapping[str, StoredTensor],
          head_dim: int) -> dict[str, object]:
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
        gain_all = reader.optional_number("rope.scaling.yarn_log_multiplier")
        scaled = {} if gain_all is None else dict.fromkeys(("mscale", "mscale_all_dim"), 10.0 * gain_all)
        return rope | scaled | {
            "factor": factor, "original_max_position_embeddings": original, "beta_fast": beta_fast,
            "beta_slow": beta_slow, "truncate": arch != "gpt-oss"}
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
        ends = {tokens.raw(index): index for index, kind in enumerate(types) if kind == _CONTROL}
        if b"<|return|>" in ends:  # GPT-OSS, where the other one ends a part of an answer
            ends.pop(b"<|end|>", None)
        yield from (index for raw, index in ends.items() if raw in _END_OF_TURN)
