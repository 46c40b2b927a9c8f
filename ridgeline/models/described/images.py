"""Models that see images: a wrapper's config -> the language model's config and a VisionSpec.

The encoders are those of CLIP (LLaVA-NeXT, Molmo), SigLIP (SmolVLM, Idefics3, Gemma 3), InternViT, Pixtral
and Qwen2.5-VL; every tensor counts, stacked where layers are equal.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ridgeline.blocks.vision.spec import VisionSpec
from ridgeline.models.read import INERT, ConfigReader
from ridgeline.spec.block import ParamSpec

Fields = Mapping[str, Any]
Split = tuple[dict[str, Any], VisionSpec | None]
Wrapper = Callable[[Fields, str], Split]
_INERT = INERT | {
    "tie_word_embeddings", "dtype", "torch_dtype", "use_cache", "ignore_index", "eos_token_id",
    "bos_token_id", "pad_token_id", "vocab_size", "projector_hidden_act", "vision_feature_layer",
    "vision_feature_select_strategy", "use_image_newline_parameter", "image_seq_length",
    "multimodal_projector_bias", "audio_config", "vision_soft_tokens_per_image", "mm_tokens_per_image",
    "use_unified_vision_chunk", "video_placeholder", "boi_token_index", "eoi_token_index", "hidden_size",
    "image_grid_pinpoints"}
# of an encoder: how it computes what its sizes say, or names of other configs
_ENCODER_INERT = INERT | {
    "hidden_act", "layer_norm_eps", "projection_dim", "vocab_size", "num_channels", "num_attention_heads",
    "num_heads", "dtype", "torch_dtype", "in_channels", "in_chans", "initializer_factor",
    "projection_dropout", "norm_type", "layer_scale_init_value", "hidden_dropout_prob",
    "use_absolute_position_embeddings", "use_mask_token", "tokens_per_second", "temporal_patch_size",
    "out_hidden_size", "max_num_images", "size", "vision_use_head", "use_base_siglip", "spatial_patch_size",
    "use_mean_pooling", "max_image_size", "tie_word_embeddings"}


def _tensor(name: str, *shape: int, role: str = "plain") -> ParamSpec:
    return ParamSpec(name=name, shape=shape, role=role)


def _encoder(hidden: int, inner: int, layers: int, patch: int, *, positions: int = 0,
             class_token: bool = False, patch_bias: bool = True, frames: int = 1, gated: bool = False,
             norm_bias: bool = True, scales: bool = False, ends: int = 1,
             bias: bool = True) -> tuple[ParamSpec, ...]:
    """Every tensor of a vision transformer. bias: its projections have biases; frames: of a patch; scales:
    learnt of both residuals; ends: norms outside the layers."""
    ups, norms = (2 if gated else 1) * inner, 2 if norm_bias else 1
    found = [_tensor("patch.weight", hidden, 3 * frames * patch * patch),
             _tensor("layers.attn.weight", layers, 4 * hidden, hidden),
             _tensor("layers.mlp.weight", layers, ups + inner, hidden),
             _tensor("layers.norms", layers, 2 * norms, hidden, role="norm"),
             _tensor("norms", ends, norms, hidden, role="norm")]
    if bias:
        found += [_tensor("layers.attn.bias", layers, 4 * hidden, role="bias"),
                  _tensor("layers.mlp.bias", layers, ups + hidden, role="bias")]
    found += [_tensor("patch.bias", hidden, role="bias")] * patch_bias
    found += [_tensor("class", hidden, role="embed")] * class_token
    found += [_tensor("positions", positions, hidden, role="embed")] * bool(positions)
    found += [_tensor("layers.scales", layers, 2, hidden, role="norm")] * scales
    return tuple(found)


def _two_layers(wide: int, hidden: int, *, norm: bool = False) -> tuple[ParamSpec, ...]:
    """A connector of two matrices with biases, behind a LayerNorm or not."""
    normed = (_tensor("connector.norm", 2, wide, role="norm"),) if norm else ()
    return (*normed, _tensor("connector.in.weight", hidden, wide),
            _tensor("connector.in.bias", hidden, role="bias"),
            _tensor("connector.out.weight", hidden, hidden),
            _tensor("connector.out.bias", hidden, role="bias"))


def _open(config: Fields, where: str, *read: str) -> tuple[dict[str, Any], ConfigReader]:
    """The language model's config and the encoder's; other fields of the wrapper are refused, but for those
    in `read` and marks of images."""
    marks = {name for name in config if name.endswith(("_token_id", "_token_index"))}
    apart = ("text_config", "vision_config")
    top = ConfigReader({name: value for name, value in config.items() if name not in apart}, where)
    top.inert(_INERT | marks | set(read))
    top.finish()
    text = dict(config["text_config"])
    text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings"))
    vision = ConfigReader(config["vision_config"], f"{where}: vision_config")
    vision.inert(_ENCODER_INERT)
    return text, vision


def _pixels(vision: ConfigReader, name: str, default: int) -> int:
    """A side, stated once or for both axes."""
    stated = vision.stated(name)
    both = {int(side) for side in vision.numbers(name)} if isinstance(stated, list | tuple) else {
        vision.size(name, default)}
    if len(both) != 1:
        raise vision.refuse(name, "not known: a square is")
    return both.pop()


def _sizes(vision: ConfigReader, image: int) -> tuple[tuple[int, int, int, int], int]:
    """(hidden, intermediate, layers, patch side), and a tile's side, by default that of `image`."""
    sizes = (vision.size("hidden_size"), vision.size("intermediate_size"), vision.size("num_hidden_layers"))
    return (*sizes, _pixels(vision, "patch_size", 14)), _pixels(vision, "image_size", image)


def _vision(sizes: tuple[int, int, int, int], **more: Any) -> VisionSpec:
    hidden, _, layers, patch = sizes
    return VisionSpec(hidden_size=hidden, num_layers=layers, patch_size=patch, **more)


def llava_next(config: Fields, where: str) -> Split:
    """LLaVA-NeXT: CLIP, tiles of the best of five resolutions, one more of the whole image."""
    text, vision = _open(config, where)
    sizes, tile = _sizes(vision, 336)
    vision.finish()
    pinpoints = config.get("image_grid_pinpoints") or (
        (336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
    allowed = tuple((rows // tile, columns // tile) for rows, columns in pinpoints)
    encoder = _encoder(*sizes, positions=(tile // sizes[3]) ** 2 + 1, class_token=True, patch_bias=False,
                       ends=2)
    connector = (_tensor("connector.newline", text["hidden_size"], role="embed"),
                 *_two_layers(sizes[0], text["hidden_size"]))
    return text, _vision(sizes, tile_size=tile, encoder=encoder, prefix=1, connector=connector,
                         allowed=allowed,
                         rule="best_resolution", max_tiles=max(r * c for r, c in allowed), overview=True)


def smolvlm(config: Fields, where: str) -> Split:
    """Idefics3 and SmolVLM: SigLIP, tiles of an image scaled to four tiles (five in Idefics3), squares of
    tokens laid into channels."""
    text, vision = _open(config, where, "scale_factor")
    sizes, tile = _sizes(vision, 224)
    vision.finish()
    scale, tiles = int(config.get("scale_factor", 2)), 5 if config["model_type"] == "idefics3" else 4
    connector = (_tensor("connector.weight", text["hidden_size"], sizes[0] * scale**2),)
    return text, _vision(sizes, tile_size=tile, encoder=_encoder(*sizes, positions=(tile // sizes[3]) ** 2),
                         merge=scale, connector=connector, rule="longest_side", side=tile * tiles,
                         overview=True)


def internvl(config: Fields, where: str) -> Split:
    """InternVL: InternViT, up to twelve tiles of the nearest aspect ratio, 2 x 2 tokens laid into
    channels."""
    text, vision = _open(config, where, "downsample_ratio")
    vision.fixed("use_qk_norm", False)
    vision.fixed("attention_bias", True)
    sizes, tile = _sizes(vision, 448)
    vision.finish()
    merge = round(1 / float(config.get("downsample_ratio", 0.5)))
    encoder = _encoder(*sizes, positions=(tile // sizes[3]) ** 2 + 1, class_token=True, scales=True, ends=0)
    return text, _vision(sizes, tile_size=tile, encoder=encoder, merge=merge, prefix=1, rule="closest_aspect",
                         connector=_two_layers(sizes[0] * merge**2, text["hidden_size"], norm=True),
                         max_tiles=12, overview=True)


# of an InternVL checkpoint's own config class: training, and of its encoder what is a choice of code
_CHAT_INERT = ("use_backbone_lora", "use_llm_lora", "select_layer", "template", "dynamic_image_size",
               "use_thumbnail", "ps_version", "min_dynamic_patch", "pad2square", "image_fold",
               "system_message")
_VIT_INERT = ("attention_dropout", "drop_path_rate", "dropout", "use_flash_attn", "use_bfloat16",
              "output_attentions", "output_hidden_states", "initializer_range", "layer_norm_eps",
              "num_images")


def internvl_chat(config: Fields, where: str) -> Split:
    """InternVL as its authors publish it: the same with other names."""
    vision = {name: value for name, value in config["vision_config"].items() if name not in _VIT_INERT}
    vision["attention_bias"] = vision.pop("qkv_bias", True)
    vision["use_qk_norm"] = vision.pop("qk_normalization", False)
    vision["image_size"] = config.get("force_image_size") or vision.get("image_size", 448)
    apart = {*_CHAT_INERT, "llm_config", "vision_config", "force_image_size", "max_dynamic_patch"}
    top = {name: value for name, value in config.items() if name not in apart}
    text, seen = internvl(top | {"text_config": config["llm_config"], "vision_config": vision}, where)
    return text, seen and replace(seen, max_tiles=int(config.get("max_dynamic_patch", 12)))


def mistral3(config: Fields, where: str) -> Split:
    """Mistral Small 3.1 and 3.2: Pixtral's encoder at an image's own size, 2 x 2 patches merged to a token by
    one matrix, two more behind it."""
    text, vision = _open(config, where, "spatial_merge_size")
    vision.inert(("rope_theta", "rope_parameters", "attention_dropout"))
    sizes, side = _sizes(vision, 1540)
    vision.fixed("head_dim", sizes[0] // vision.size("num_attention_heads", 16))
    vision.finish()
    merge, hidden = int(config.get("spatial_merge_size", 2)), text["hidden_size"]
    biases = 2 * bool(config.get("multimodal_projector_bias"))
    encoder = _encoder(*sizes, patch_bias=False, gated=True, norm_bias=False, bias=False)
    connector = (_tensor("connector.norm", sizes[0], role="norm"),
                 _tensor("connector.merge.weight", sizes[0], sizes[0] * merge**2),
                 _tensor("connector.in.weight", hidden, sizes[0]),
                 _tensor("connector.out.weight", hidden, hidden),
                 *[_tensor("connector.bias", biases, hidden, role="bias")] * bool(biases))
    step = merge * sizes[3]
    return text, _vision(sizes, tile_size=step, encoder=encoder, merge=merge, connector=connector,
                         rule="whole_steps", pixels=(step**2, side**2))


def qwen25_vl(config: Fields, where: str) -> Split:
    """Qwen2.5-VL: images at their own size in steps of 28 pixels, windows of 112 in most layers, 2 x 2
    patches a token. Published configs hold the language model's fields beside vision_config."""
    if "text_config" not in config:
        apart = ("vision_config", "model_type")
        text = {name: value for name, value in config.items() if name not in apart and "vision" not in name
                and not name.endswith(("image_token_id", "video_token_id"))}
        config = {name: config[name] for name in apart} | {"text_config": text}
    text, vision = _open(config, where)
    text |= {"model_type": "qwen2", "rope_scaling": None, "rope_parameters": None}  # texts have one position
    sizes = (vision.size("hidden_size"), vision.size("intermediate_size"), vision.size("depth"),
             vision.size("patch_size", 14))
    merge, full = vision.size("spatial_merge_size", 2), len(vision.numbers("fullatt_block_indexes"))
    within = (vision.size("window_size", 112) // sizes[3]) ** 2
    vision.finish()
    wide, hidden, step = merge**2 * sizes[0], text["hidden_size"], merge * sizes[3]
    encoder = _encoder(*sizes, patch_bias=False, frames=2, gated=True, norm_bias=False, ends=1)
    connector = (_tensor("connector.in.weight", wide, wide), _tensor("connector.in.bias", wide, role="bias"),
                 _tensor("connector.out.weight", hidden, wide),
                 _tensor("connector.out.bias", hidden, role="bias"))
    return text, _vision(sizes, tile_size=step, encoder=encoder, merge=merge, connector=connector,
                         rule="whole_steps", pixels=(4 * step**2, 16384 * step**2),
                         windows=(within, sizes[2] - full))


def gemma3(config: Fields, where: str) -> Split:
    """Gemma 3: SigLIP at 896 pixels, 4 x 4 patches averaged to a token; no tiles unless asked for."""
    text, vision = _open(config, where)
    sizes, tile = _sizes(vision, 896)
    vision.finish()
    merge = round(tile / sizes[3] / int(config.get("mm_tokens_per_image", 256)) ** 0.5)
    connector = (_tensor("connector.weight", sizes[0], text["hidden_size"]),
                 _tensor("connector.norm", sizes[0], role="norm"))
    return text, _vision(sizes, tile_size=tile, encoder=_encoder(*sizes, positions=(tile // sizes[3]) ** 2),
                         merge=merge, connector=connector)


def molmo(config: Fields, where: str) -> Split:
    """Molmo (arXiv 2409.17146): the encoder is not in its config: CLIP ViT-L/14 at 336 pixels without its
    last layer, two layers' patches side by side, 2 x 2 of them pooled by attention, a gated projector."""
    top = ConfigReader(config, where)
    hidden, inner = top.size("hidden_size"), top.size("intermediate_size") // 2
    for name, value in (("layer_norm_type", "rms"), ("qkv_bias", True), ("position_embedding_type", "rope"),
                        ("norm_after", False), ("attention_layer_norm", False)):
        top.fixed(name, value)
    same = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    text = {"model_type": "qwen2", "hidden_size": hidden, "intermediate_size": inner,
            "rms_norm_eps": top.number("layer_norm_eps", 1e-5), "vocab_size": top.size("embedding_size"),
            "rope_theta": top.number("rope_theta"), **{name: top.integer(name) for name in same},
            "tie_word_embeddings": top.flag("tie_word_embeddings", False)}
    top.inert({*INERT, "vocab_size", "use_position_ids", "weight_tying", "torch_dtype", "dtype",
               "eos_token_id", "bos_token_id", "pad_token_id"})
    top.finish()
    sizes, tile = (1024, 4096, 23, 14), 336
    encoder = _encoder(*sizes, positions=(tile // sizes[3]) ** 2 + 1, class_token=True, patch_bias=False)
    pair = 2 * sizes[0]
    connector = (_tensor("connector.pool.weight", 3 * sizes[0], pair),
                 _tensor("connector.pool.out", sizes[0], sizes[0]),
                 _tensor("connector.pool.bias", 4 * sizes[0], role="bias"),
                 _tensor("connector.up", 2 * inner, sizes[0]), _tensor("connector.down", hidden, inner),
                 _tensor("connector.padding", 2, pair, role="embed"),
                 _tensor("tokens", 128, hidden, role="embed"))
    return text, _vision(sizes, tile_size=tile, encoder=encoder, prefix=1, merge=2, connector=connector,
                         rule="overlapping", margin=4 * sizes[3], max_tiles=12, overview=True)


def text_alone(config: Fields, where: str) -> Split:
    """A wrapper whose encoder is not described: the language model is planned as if it served texts alone."""
    text, _ = _open(config, where)
    return text, None


WRAPPERS: Mapping[str, Wrapper] = {
    "llava_next": llava_next, "smolvlm": smolvlm, "idefics3": smolvlm, "internvl": internvl,
    "internvl_chat": internvl_chat, "mistral3": mistral3, "qwen2_5_vl": qwen25_vl,
    "gemma3": gemma3, "molmo": molmo, "gemma4": text_alone, "qwen3_5": text_alone, "qwen3_5_moe": text_alone,
    "kimi_k25": text_alone}
