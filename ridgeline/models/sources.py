"""Where each of our weights comes from: checkpoint tensors laid one below another. Reads no file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One checkpoint tensor of a weight.

    rows: how many of the weight's rows it is, None for all. interleaved_heads: number of heads whose rows the
    file holds as rotary pairs (2i, 2i + 1) instead of (i, i + width / 2), to be put back in order (GGUF files
    of the llama architecture); 0 when in order, 1 for a gate and an up product whose rows alternate. stacked:
    the tensor holds this part of every matrix of a stack, along its first axis. transposed: a matrix of the
    file is [in, out]. scales: the tensor of scales beside name, where name holds MXFP4 blocks. rotary_rows:
    how many of a head's rows, its last ones, are interleaved; None for all.
    """

    name: str
    rows: int | None = None
    interleaved_heads: int = 0
    stacked: bool = False
    transposed: bool = False
    scales: str = ""
    rotary_rows: int | None = None

    def order(self, rows: int) -> list[int]:
        """Stored row of each of our rows, for a part with interleaved heads."""
        width = rows // self.interleaved_heads
        plain = 0 if self.rotary_rows is None else width - self.rotary_rows
        head = [*range(plain), *range(plain, width, 2), *range(plain + 1, width, 2)]
        return [start + row for start in range(0, rows, width) for row in head]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The parts of one weight, concatenated on rows in this order.

    added: to every number of it (norms that files hold less one).
    matrices: 0 for a single weight, else the size of a stack (experts; heads, whose matrices lie one below
    another): its parts are either all stacked, or those of the first matrix, then those of the second, and so
    on.
    """

    parts: tuple[Part, ...]
    matrices: int = 0
    added: float = 0.0

    def parts_of(self, matrix: int) -> tuple[Part, ...]:
        """The parts of one matrix of a stack."""
        if self.parts[0].stacked:
            return self.parts
        each = len(self.parts) // self.matrices
        return self.parts[matrix * each:(matrix + 1) * each]

    def shape_of_each(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a matrix in a stack of this shape, else the shape itself."""
        if not self.matrices:
            return shape
        return shape[1:] if shape[0] == self.matrices else (shape[0] // self.matrices, *shape[1:])

    @property
    def tensor_names(self) -> set[str]:
        """Every tensor that the weight is made of."""
        return {name for part in self.parts for name in (part.name, part.scales) if name}
