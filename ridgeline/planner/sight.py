"""What the images of a request add: patches, visual tokens, the encoder's work. Knows no language model.

By the model's own encoder where it has one, else by a named one; tiles, patches a token and encoder can be
asked for. Source: "The Mechanics of LLM Inference", Vision-language inference.
"""

from dataclasses import dataclass
from math import ceil, isqrt

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.blocks.vision.spec import VisionSpec
from ridgeline.ledger import closed
from ridgeline.planner.ask import Pictures
from ridgeline.planner.encoders import encoders

_ELEMENT = 2  # bytes of a weight; encoders are not packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The images of one request. tokens: as tilers pool, each tile's border included; nominal_tokens: patches
    over the pooling ratio. flops: of encoder and connector; nominal_flops: 2PN + 4Ln^2d a tile.
    weights_bytes: of the encoder; added_bytes: of it, what the model's own weights do not count."""

    encoder: str
    tiles: int
    patches: int
    tokens: int
    nominal_tokens: float
    flops: float
    nominal_flops: float
    weights_bytes: float
    added_bytes: float


def look(pictures: Pictures, own: VisionSpec | None) -> Sight:
    """own: the model's encoder. ConfigError where neither it nor the ask names one, or the tiles are not
    known."""
    if pictures.encoder is not None:
        return _named(pictures, pictures.encoder)
    if own is None:
        raise ConfigError("--images needs --vision-encoder: this model has no encoder of its own")
    return _own(pictures, own)


def _pooled(side: int, pooling: int) -> int:
    """Tokens of one tile: by squares where the ratio is a square, else by the area."""
    return closed.pooled_tokens(side, pooling) if isqrt(pooling) ** 2 == pooling else ceil(side**2 / pooling)


def _own(pictures: Pictures, vision: VisionSpec) -> Sight:
    tiles = pictures.images * (pictures.tiles or vision.max_tiles + vision.overview)
    patches, pooling = tiles * vision.tile_patches, pictures.pooling or vision.merge**2
    each = vision.tile_tokens if pictures.pooling is None else _pooled(isqrt(vision.tile_patches), pooling)
    params = sum(param.num_elements for param in vision.encoder)
    return Sight(encoder="the model's own", tiles=tiles, patches=patches, tokens=tiles * each,
                 nominal_tokens=closed.visual_tokens(patches, pooling),
                 flops=vision.flops(patches, tiles * each), added_bytes=0.0,
                 nominal_flops=closed.encoder_flops(params, vision.num_layers, vision.hidden_size,
                                                    vision.tile_patches, tiles),
                 weights_bytes=float(vision.num_params * _ELEMENT))


def _named(pictures: Pictures, name: str) -> Sight:
    known = encoders()
    short = {key.split(",")[0]: known[key] for key in reversed(list(known))}
    encoder = Table("vision encoder", {**known, **short})[name.lower()]
    if pictures.tiles is None:
        raise ConfigError(f"--tiles is missing: {name} says nothing of how an image is cut; 13 is usual")
    tiles, pooling = pictures.images * pictures.tiles, pictures.pooling or 1
    patches, tokens = tiles * encoder.patches, tiles * _pooled(encoder.side, pooling)
    return Sight(encoder=name, tiles=tiles, patches=patches, tokens=tokens,
                 nominal_tokens=closed.visual_tokens(patches, pooling), flops=encoder.flops(tiles, tokens),
                 nominal_flops=encoder.nominal_flops(tiles),
                 weights_bytes=encoder.params * _ELEMENT, added_bytes=encoder.params * _ELEMENT)
