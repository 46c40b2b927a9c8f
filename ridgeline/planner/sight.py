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

_PIXELS = 1024  # a side of an image, where the encoder takes any size and no tiles are given
_ELEMENT = 2  # bytes of a weight; encoders are not packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The images of one request. tokens: as tilers pool, each tile's border included; nominal_tokens: patches
    over the pooling ratio. flops: of encoder and connector; nominal_flops: 2PN + 4Ln^2d a tile.
    weights_bytes: of the encoder; added_bytes: of it, what the model's own weights do not count. note: what
    was chosen for the ask, ""."""

    encoder: str
    tiles: int
    patches: int
    tokens: int
    nominal_tokens: float
    flops: float
    nominal_flops: float
    weights_bytes: float
    added_bytes: float
    note: str = ""


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
    pooling = pictures.pooling or vision.merge**2
    if vision.rule == "whole_steps":
        return _any_size(pictures, vision, pooling)
    tiles = pictures.images * (pictures.tiles or vision.max_tiles + vision.overview)
    patches = tiles * vision.tile_patches
    each = vision.tile_tokens if pictures.pooling is None else _pooled(isqrt(vision.tile_patches), pooling)
    params = sum(param.num_elements for param in vision.encoder)
    return Sight(encoder="the model's own", tiles=tiles, patches=patches, tokens=tiles * each,
                 nominal_tokens=closed.visual_tokens(patches, pooling),
                 flops=vision.flops(patches, tiles * each), added_bytes=0.0,
                 nominal_flops=closed.encoder_flops(params, vision.num_layers, vision.hidden_size,
                                                    vision.tile_patches, tiles),
                 weights_bytes=float(vision.num_params * _ELEMENT))


def _any_size(pictures: Pictures, vision: VisionSpec, pooling: int) -> Sight:
    """An encoder that sees an image whole, in squares of tile_size pixels: --tiles are its squares."""
    squares, note = pictures.tiles, ""
    if squares is None:
        squares = vision.image(_PIXELS, _PIXELS)[0] // vision.tile_patches
        note = (f"an image has {_PIXELS} x {_PIXELS} pixels, as no --tiles says how many squares of "
                f"{vision.tile_size} it has")
    images, patches = pictures.images, squares * vision.tile_patches
    tokens = ceil(patches / pooling)
    params = sum(param.num_elements for param in vision.encoder)
    return Sight(encoder="the model's own", tiles=images, patches=images * patches, tokens=images * tokens,
                 nominal_tokens=closed.visual_tokens(images * patches, pooling), added_bytes=0.0, note=note,
                 flops=images * vision.flops(patches, tokens),
                 nominal_flops=closed.encoder_flops(params, vision.num_layers, vision.hidden_size, patches,
                                                    images),
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
