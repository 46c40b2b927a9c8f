"""Families with recurrent states: Mamba-2, Bamba (Mamba-2 and attention), Qwen3.5 text (gated delta and
attention).

Owns their config fields, layers and tensor names in safetensors; GGUF files of them are not read.
"""

from collections.abc import Container
from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.gated_delta.spec import GatedDeltaSpec
from ridgeline.blocks.mamba2.spec import Mamba2Spec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.models.names import HF, Names, hf_mlp, named_sources
from ridgeline.models.read import Blocks, ConfigReader, Read, Reader, read_model
from ridgeline.models.rope import reach, read_rope
from ridgeline.models.sources import Source
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import ModelSpec

_ENDLESS = 1 << 20  # a pure recurrence states no context; what an engine takes unless told less


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """One family. read: (config) -> (blocks of each layer, hidden size, norm eps, context). names: of its
    tensors in safetensors. unit: what a norm's weight is stored less."""

    name: str
    read: Reader
    names: Names
    unit: float = 0.0

    def spec(self, config: ConfigReader) -> ModelSpec:
        """The model that a config describes. ConfigError for fields that we do not have."""
        return read_model(config, self.name, self.read)

    def hf_sources(self, spec: ModelSpec) -> dict[str, Source]:
        """Our full names -> tensors of a safetensors checkpoint."""
        return named_sources(spec, self.names, norm_added=self.unit)

    def gguf_sources(self, spec: ModelSpec, stored: Container[str]) -> dict[str, Source]:
        """ConfigError: not read."""
        raise ConfigError(f"GGUF files of {self.name} are not read: use its safetensors checkpoint")


def read_attention(config: ConfigReader, hidden: int, eps: float, max_position: int, partial: float, *,
                   gated: bool) -> AttentionSpec:
    """Attention beside recurrent layers. partial: the share of a head that is rotated. gated: an output gate,
    and norms of queries and keys."""
    num_heads = config.size("num_attention_heads")
    num_kv_heads = config.optional_size("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise config.refuse("num_key_value_heads", f"does not divide num_attention_heads = {num_heads}")
    head_dim = config.optional_size("head_dim") or hidden // num_heads
    bias = config.flag("attention_bias", False)
    rope = read_rope(config, head_dim=head_dim, max_position=max_position, aliases={}, partial=partial,
                     inert=("mrope_section", "mrope_interleaved"))  # texts have one position, not three
    return AttentionSpec(
        hidden_size=hidden, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, norm_eps=eps,
        rope=rope, scale=head_dim**-0.5, qkv_bias=bias, out_bias=bias, qk_norm=gated, out_gate=gated)


def _mlp(config: ConfigReader, hidden: int, eps: float) -> MlpSpec:
    return MlpSpec(hidden_size=hidden, intermediate_size=config.size("intermediate_size"), norm_eps=eps,
                   bias=config.flag("mlp_bias", False))


def _must_be(config: ConfigReader, name: str, value: object, wanted: object) -> None:
    if value != wanted:
        raise config.refuse(name, f"not supported: {wanted} is")


def _mamba(config: ConfigReader, hidden: int, eps: float, names: tuple[str, ...]) -> Mamba2Spec:
    """names: the family's own for heads, head width, state, groups, convolution, expansion, biases, block."""
    heads, width, state, groups, conv, expand, bias, conv_bias, chunk = names
    num_heads, inner = config.size(heads, 128), config.integer(expand, 2) * hidden
    head_dim = inner // num_heads if config.stated(width) == "auto" else config.size(width, 64)
    if num_heads * head_dim != inner:
        raise config.refuse(heads, f"times {head_dim} is not {inner // hidden} x hidden_size = {inner}")
    num_groups = config.size(groups, 1)
    if num_heads % num_groups:
        raise config.refuse(groups, f"does not divide {heads} = {num_heads}")
    limit = config.numbers("time_step_limit")
    _must_be(config, "time_step_limit", limit or (0.0, float("inf")), (0.0, float("inf")))
    _must_be(config, "hidden_act", config.text("hidden_act", "silu"), "silu")
    # how an implementation blocks the scan, and how weights were first drawn
    config.inert((chunk, "time_step_rank", "time_step_min", "time_step_max", "time_step_floor"))
    return Mamba2Spec(
        hidden_size=hidden, num_heads=num_heads, head_dim=head_dim, state_size=config.size(state),
        num_groups=num_groups, conv_width=config.size(conv, 4), norm_eps=eps,
        conv_bias=config.flag(conv_bias, True), bias=config.flag(bias, False))


def _read_mamba2(config: ConfigReader) -> Read:
    hidden, eps = config.size("hidden_size"), config.number("layer_norm_epsilon", 1e-5)
    # the last three are in published files and read by no implementation
    config.inert(("residual_in_fp32", "rescale_prenorm_residual", "intermediate_size", "norm_before_gate",
                  "rms_norm"))
    mamba = _mamba(config, hidden, eps, (
        "num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "expand", "use_bias",
        "use_conv_bias", "chunk_size"))
    return [(("mamba", mamba),)] * config.size("num_hidden_layers"), hidden, eps, _ENDLESS


def _read_bamba(config: ConfigReader) -> Read:
    hidden, eps = config.size("hidden_size"), config.number("rms_norm_eps", 1e-5)
    max_position = config.size("max_position_embeddings", 262144)
    num_layers = config.size("num_hidden_layers")
    config.inert(("num_logits_to_keep", "z_loss_coefficient"))
    mamba = _mamba(config, hidden, eps, (
        "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_expand",
        "mamba_proj_bias", "mamba_conv_bias", "mamba_chunk_size"))
    attention = read_attention(config, hidden, eps, max_position, 0.5, gated=False)
    mlp = _mlp(config, hidden, eps)
    attends = {int(index) for index in config.numbers("attn_layer_indices")}
    layers: list[Blocks] = [(("attn", attention) if index in attends else ("mamba", mamba), ("mlp", mlp))
                            for index in range(num_layers)]
    return layers, hidden, eps, reach(attention.rope)


def _read_qwen35(config: ConfigReader) -> Read:
    hidden, eps = config.size("hidden_size"), config.number("rms_norm_eps", 1e-6)
    mlp = _mlp(config, hidden, eps)
    config.inert(("mlp_only_layers", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"))
    mixers, max_position = read_delta_mixers(config, hidden, eps)
    return [(mixer, ("mlp", mlp)) for mixer in mixers], hidden, eps, max_position


def read_delta_mixers(config: ConfigReader, hidden: int,
                      eps: float) -> tuple[list[tuple[str, BlockSpec]], int]:
    """The attention or gated delta block of each layer (Qwen3-Next, Qwen3.5), and the context."""
    max_position, num_layers = config.size("max_position_embeddings", 32768), config.size("num_hidden_layers")
    _must_be(config, "hidden_act", config.text("hidden_act", "silu"), "silu")
    _must_be(config, "attn_output_gate", config.flag("attn_output_gate", True), True)
    _must_be(config, "mamba_ssm_dtype", config.text("mamba_ssm_dtype", "float32"), "float32")
    delta = GatedDeltaSpec(
        hidden_size=hidden, num_key_heads=config.size("linear_num_key_heads", 16),
        num_value_heads=config.size("linear_num_value_heads", 32), norm_eps=eps,
        key_dim=config.size("linear_key_head_dim", 128), value_dim=config.size("linear_value_head_dim", 128),
        conv_width=config.size("linear_conv_kernel_dim", 4))
    if delta.num_value_heads % delta.num_key_heads:
        raise config.refuse("linear_num_key_heads",
                            f"does not divide linear_num_value_heads = {delta.num_value_heads}")
    attention = read_attention(config, hidden, eps, max_position, 0.25, gated=True)
    every = config.size("full_attention_interval", 4)
    kinds = config.texts("layer_types") or tuple(
        "linear_attention" if (index + 1) % every else "full_attention" for index in range(num_layers))
    if len(kinds) != num_layers or not {"linear_attention", "full_attention"}.issuperset(kinds):
        raise config.refuse("layer_types",
                            f"needs linear_attention or full_attention for each of {num_layers} layers")
    mixers: list[tuple[str, BlockSpec]] = [
        ("attn", attention) if kind == "full_attention" else ("delta", delta) for kind in kinds]
    return mixers, reach(attention.rope)


def _mixer(block: str, path: str) -> Names:
    """Of a recurrent block; its gated norm is held as it is."""
    leaves = {"out": "out_proj", "conv": "conv1d", "gated_norm.weight": "norm.weight", "dt_bias": "dt_bias",
              "a_log": "A_log", "skip": "D", "in": "in_proj"}
    return {f"{block}.{ours}": f"{path}.{theirs}" for ours, theirs in leaves.items()}


MAMBA2 = Hybrid(name="mamba2", read=_read_mamba2, names={
    **HF, "embed": "backbone.embeddings", "final_norm": "backbone.norm_f", "layer": "backbone.layers.{}",
    "mamba.norm": "norm", **_mixer("mamba", "mixer")})
BAMBA = Hybrid(name="bamba", read=_read_bamba, names={
    **HF, "final_norm": "model.final_layernorm", "mamba.norm": "input_layernorm", **_mixer("mamba", "mamba"),
    "mlp.norm": "pre_ff_layernorm", **hf_mlp("mlp.", "feed_forward")})
QWEN35 = Hybrid(name="qwen3_5_text", read=_read_qwen35, unit=1.0, names={
    **HF, "delta.norm": "input_layernorm", **_mixer("delta", "linear_attn"),
    "delta.in": tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a"))})
