"""Vision encoders by name, for plans and labs: nominal ones, and those of the models that are described here.
Knows no request and no device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ridgeline.blocks.vision.spec import VisionSpec
from ridgeline.ledger import closed
from ridgeline.models.catalog import find_model, model_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A vision transformer: parameters, layers, width, and patches along a tile's side. described: its blocks
    and connector, where a model's own config gives them."""

    params: float
    num_layers: int
    width: int
    side: int
    described: VisionSpec | None = None

    @property
    def patches(self) -> int:
        """Of one tile."""
        return self.side**2

    def nominal_flops(self, tiles: int) -> float:
        """Of encoding so many tiles by the closed form."""
        return closed.encoder_flops(self.params, self.num_layers, self.width, self.patches, tiles)

    def flops(self, tiles: int, tokens: int) -> float:
        """The same with connector and windows as described; the closed form where nothing is."""
        if self.described is None:
            return self.nominal_flops(tiles)
        return self.described.flops(tiles * self.patches, tokens)


@cache
def encoders() -> Mapping[str, Encoder]:
    """The nominal So400m of "The Mechanics of LLM Inference" (SigLIP, Zhai et al. 2023; published towers have
    413 to 428e6 parameters), then those of the models that cut an image into tiles of one size."""
    nominal = {f"so400m, {pixels} px": Encoder(params=400e6, num_layers=27, width=1152, side=pixels // 14)
               for pixels in (384, 224)}
    seen = {name: vision for name in model_names() if (vision := find_model(name).vision)}
    return nominal | {f"of {name}": Encoder(
        params=sum(param.num_elements for param in vision.encoder), num_layers=vision.num_layers,
        width=vision.hidden_size, side=vision.tile_size // vision.patch_size, described=vision)
        for name, vision in seen.items() if vision.rule != "whole_steps"}
