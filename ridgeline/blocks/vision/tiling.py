"""How an image becomes tiles and visual tokens, by the published rule of each model's processor. Reads no
pixel.

An image is (height, width) in pixels; a grid is (rows, columns).
"""

from collections.abc import Iterable
from math import ceil, floor, sqrt

Grid = tuple[int, int]


def grids(most: int) -> list[Grid]:
    """Every grid of at most so many tiles, the smallest first."""
    found = [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]
    return sorted(found, key=lambda grid: (grid[0] * grid[1], grid))


def closest_aspect(height: int, width: int, tile: int, most: int) -> Grid:
    """InternVL: the grid of the nearest aspect ratio; of equals the larger one, if the image has more than
    half of its pixels."""
    aspect, best, least = width / height, (1, 1), float("inf")
    for rows, columns in grids(most):
        off = abs(aspect - columns / rows)
        if off < least or (off == least and height * width > 0.5 * tile * tile * rows * columns):
            best, least = (rows, columns), off
    return best


def longest_side(height: int, width: int, tile: int, side: int) -> Grid:
    """Idefics3, SmolVLM: the longest side is scaled to `side`, both are filled up to whole tiles."""
    scale = side / max(height, width)
    return ceil(floor(height * scale + 1e-6) / tile), ceil(floor(width * scale + 1e-6) / tile)


def best_resolution(height: int, width: int, tile: int, allowed: Iterable[Grid]) -> Grid:
    """LLaVA-NeXT: the allowed grid that keeps most of the image's pixels, then that wastes the fewest."""
    def kept(grid: Grid) -> tuple[int, int]:
        scale = min(grid[0] * tile / height, grid[1] * tile / width)
        pixels = min(int(height * scale) * int(width * scale), height * width)
        return pixels, -grid[0] * grid[1]

    return max(allowed, key=kept)


def unpadded(height: int, width: int, grid: Grid, side: int) -> int:
    """LLaVA-NeXT: tokens of the stitched grid of `side` tokens a tile without its padding, with one token a
    row."""
    rows, columns = grid[0] * side, grid[1] * side
    if width / height > columns / rows:
        rows -= 2 * ((rows - int(height * columns / width)) // 2)
    else:
        columns -= 2 * ((columns - int(width * rows / height)) // 2)
    return rows * columns + rows


def overlapping(height: int, width: int, tile: int, margin: int, most: int) -> Grid:
    """Molmo: tiles overlap by `margin` pixels on each side; the grid that enlarges the image least, or
    shrinks it least where none is large enough."""
    window, border = tile - 2 * margin, 2 * margin

    def scale(grid: Grid) -> float:
        return min(grid[0] * window / max(height - border, 1), grid[1] * window / max(width - border, 1))

    enough = [grid for grid in grids(most) if scale(grid) >= 1]
    return min(enough, key=scale) if enough else max(grids(most), key=scale)


def whole_steps(height: int, width: int, step: int, pixels: tuple[int, int]) -> Grid:
    """Qwen2-VL: sides rounded to whole steps, the image scaled into the allowed number of pixels; in
    steps."""
    rows, columns = max(round(height / step), 1), max(round(width / step), 1)
    least, most = pixels
    if rows * columns * step * step > most:
        factor = sqrt(height * width / most)
        return max(floor(height / factor / step), 1), max(floor(width / factor / step), 1)
    if rows * columns * step * step < least:
        factor = sqrt(least / (height * width))
        return ceil(height * factor / step), ceil(width * factor / step)
    return rows, columns
