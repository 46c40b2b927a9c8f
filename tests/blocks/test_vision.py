"""Protects how many tokens and FLOPs an image costs, by the rules of the public processors."""

from dataclasses import replace

import pytest

from ridgeline.blocks.vision.spec import VisionSpec
from ridgeline.models.catalog import find_model

IMAGES = ((480, 640), (768, 1024), (1080, 1920), (336, 336), (2000, 500), (3024, 4032), (100, 80))


def vision(name: str) -> VisionSpec:
    found = find_model(name).vision
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "tokens"), [
    ("llava-v1.6-mistral-7b", (2340, 2340, 1948, 1176, 1944, 2340, 1080)),
    ("internvl3-8b", tuple(256 * tiles for tiles in (13, 13, 9, 1, 5, 13, 13))),
    ("smolvlm-500m", tuple(64 * tiles for tiles in (13, 13, 13, 17, 5, 13, 17))),
    ("qwen2.5-vl-7b", (391, 999, 2691, 144, 1278, 15552, 12))])
def test_tokens_are_those_of_transformers_processors(name: str, tokens: tuple[int, ...]) -> None:
    """Heights and widths through the processors of transformers 5.24 at their published settings."""
    assert tuple(vision(name).image(*size)[1] for size in IMAGES) == tokens


def test_tiles_of_idefics3_and_of_overlapping_crops() -> None:
    """Idefics3 scales to five tiles of 364 pixels; Molmo 2's crops of 378 pixels overlap by four patches, of
    whose stitched grid and of the whole image 2 x 2 patches are one token each."""
    idefics = replace(vision("smolvlm-500m"), tile_size=364, patch_size=14, merge=2, side=5 * 364)
    found = [idefics.image(*size) for size in IMAGES]
    assert [tokens // 169 for _, tokens in found] == [21, 21, 16, 26, 11, 21, 21]
    molmo2 = replace(vision("molmo-7b-d"), tile_size=378, max_tiles=8)
    assert [molmo2.image(*size)[1] for size in IMAGES] == [725, 955, 1162, 392, 924, 955, 392]


def test_flops_of_one_photograph() -> None:
    """S49's shape: 13 tiles of 729 patches through So400m (L 27, d 1152): 2 a parameter and patch and 4 L n^2
    d of attention a tile; real towers of 413 to 428 million parameters give 8.7e12 to 9.0e12."""
    so400m = replace(vision("smolvlm2-2.2b"), connector=())
    attention = 4 * 27 * 729**2 * 1152 * 13
    matrices = sum(p.num_elements for p in so400m.encoder if p.role == "plain")
    assert so400m.flops(13 * 729, 0) == pytest.approx(2 * matrices * 13 * 729 + attention)
    assert 8.6e12 < so400m.flops(13 * 729, 0) < 9.0e12
    assert so400m.tile_tokens == 81 and replace(so400m, merge=2).tile_tokens == 196


def test_windows_see_their_own_patches() -> None:
    """Qwen2.5-VL: 28 of 32 layers attend within 8 x 8 patches."""
    qwen = vision("qwen2.5-vl-7b")
    patches, tokens = qwen.image(1080, 1920)
    whole = replace(qwen, windows=(0, 0))
    spared = 4 * 28 * (patches - 64) * patches * 1280
    assert whole.flops(patches, tokens) - qwen.flops(patches, tokens) == pytest.approx(spared)
