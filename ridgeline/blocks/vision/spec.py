"""A vision encoder for planning: what it weighs and computes, and how many tokens an image becomes.
Described, not run yet."""

from dataclasses import dataclass

from ridgeline.blocks.vision import tiling
from ridgeline.spec.block import ParamSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """A transformer over square patches, and a connector to the language model.

    encoder, connector: every tensor, those of equal layers stacked; matrices have role "plain" (they stay as
    they are when a model is quantized), tables of positions role "embed". tile_size: pixels a side of one
    tile. merge: side of the square of patches that becomes one token. rule: "one" tile, or a
    function of blocks/vision/tiling, with max_tiles, side (pixels of the longest side), margin (pixels of
    overlap), allowed (grids) and pixels (least, most) where it needs them. overview: the whole image is one
    more tile. prefix: tokens before the patches of a tile. windows: (patches of a window, layers that attend
    within one), the others see all of a tile. Start, end and row marks that are ordinary tokens of the prompt
    are not counted.
    """

    hidden_size: int
    num_layers: int
    patch_size: int
    tile_size: int
    encoder: tuple[ParamSpec, ...]
    connector: tuple[ParamSpec, ...]
    merge: int = 1
    rule: str = "one"
    max_tiles: int = 1
    side: int = 0
    margin: int = 0
    allowed: tuple[tuple[int, int], ...] = ()
    pixels: tuple[int, int] = (0, 0)
    overview: bool = False
    prefix: int = 0
    windows: tuple[int, int] = (0, 0)

    def params(self) -> tuple[ParamSpec, ...]:
        """Every tensor, encoder first."""
        return (*self.encoder, *self.connector)

    @property
    def num_params(self) -> int:
        """Parameters of encoder and connector."""
        return sum(param.num_elements for param in self.params())

    @property
    def tile_patches(self) -> int:
        """Patches of one tile."""
        return (self.tile_size // self.patch_size) ** 2

    @property
    def tile_tokens(self) -> int:
        """Visual tokens of one tile by itself; squares at the border may be cut."""
        return (-(-(self.tile_size // self.patch_size) // self.merge)) ** 2

    def image(self, height: int, width: int) -> tuple[int, int]:
        """(patches encoded, visual tokens) of one image of so many pixels."""
        tile, side = self.tile_size, -(-(self.tile_size // self.patch_size) // self.merge)
        if self.rule == "whole_steps":
            rows, columns = tiling.whole_steps(height, width, self.patch_size * self.merge, self.pixels)
            return rows * columns * self.merge**2, rows * columns
        rows, columns = self.grid(height, width)
        tiles = rows * columns + self.overview * (rows * columns > 1 or self.rule == "best_resolution")
        tokens = tiles * self.tile_tokens
        if self.rule == "best_resolution":
            tokens = self.tile_tokens + tiling.unpadded(height, width, (rows, columns), side)
        elif self.rule == "overlapping":
            kept, rim = (tile - 2 * self.margin) // self.patch_size, 2 * self.margin // self.patch_size
            tall, broad = (-(-(count * kept + rim) // self.merge) for count in (rows, columns))
            tiles, tokens = rows * columns + 1, self.tile_tokens + tall * broad
        return tiles * self.tile_patches, tokens

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles of one image, the overview not counted."""
        tile = self.tile_size
        if self.rule == "closest_aspect":
            return tiling.closest_aspect(height, width, tile, self.max_tiles)
        if self.rule == "longest_side":
            return tiling.longest_side(height, width, tile, self.side)
        if self.rule == "best_resolution":
            return tiling.best_resolution(height, width, tile, self.allowed)
        if self.rule == "overlapping":
            return tiling.overlapping(height, width, tile, self.margin, self.max_tiles)
        return 1, 1

    def flops(self, patches: int, tokens: int) -> float:
        """FLOPs of encoding so many patches, tile by tile, into so many tokens: 2 a parameter of the matrices
        and patch, 4 L n^2 d of attention a tile or window, both directions seen."""
        tiles = max(patches / self.tile_patches, 1.0) if self.rule != "whole_steps" else 1.0
        each = patches / tiles + self.prefix
        within, num_windowed = self.windows
        seen = (self.num_layers - num_windowed) * each + num_windowed * min(within, each)
        linear = 2.0 * sum(p.num_elements for p in self.encoder if p.role == "plain")
        connect = 2.0 * sum(p.num_elements for p in self.connector if p.role == "plain")
        return tiles * each * (linear + 4.0 * seen * self.hidden_size) + tokens * connect
