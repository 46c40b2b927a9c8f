"""The loader: every stored format decoded exactly and in row order, damage told by name, memory and
progress."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.torch import save_file

from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import CheckpointError
from ridgeline.models.checkpoint import Checkpoint, open_checkpoint, open_shape
from ridgeline.models.families import weight_sources
from ridgeline.models.files.stored import stored_bytes
from ridgeline.nn.load import Weights, dense, load_weights
from ridgeline.nn.progress import Progress
from ridgeline.nn.rows import SCALES
from ridgeline.quant.format import Dense, GgufBlocks, Packed, Packing, SourceWeight
from ridgeline.spec.block import ParamSpec

HIDDEN, HEADS, KV_HEADS, WIDTH, INNER, VOCAB = 256, 4, 2, 64, 512, 64
PLAIN = {"float32": np.float32, "float16": np.float16}
MATRICES = {
    "token_embd": (VOCAB, HIDDEN),
    "blk.0.attn_q": (HEADS * WIDTH, HIDDEN),
    "blk.0.attn_k": (KV_HEADS * WIDTH, HIDDEN),
    "blk.0.attn_v": (KV_HEADS * WIDTH, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HEADS * WIDTH),
    "blk.0.ffn_gate": (INNER, HIDDEN),
    "blk.0.ffn_up": (INNER, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, INNER),
}


def random_blocks(kind: str, shape: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """Random bytes as rows of a format, with small finite scales where the format has float16 ones."""
    total = stored_bytes(kind, shape)
    assert total is not None
    raw = np.random.default_rng(seed).integers(0, 256, total, dtype=np.uint8).reshape(shape[0], -1)
    if kind in ("float32", "float16", "bfloat16"):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return values.to(getattr(torch, kind)).view(torch.uint8).numpy().reshape(shape[0], -1)
    offset, count = SCALES.get(kind, (0, 1))
    block = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "iq4_nl": 18}.get(kind) or {
        "q2_k": 84,
        "q3_k": 110,
        "q4_k": 144,
        "q5_k": 176,
        "q6_k": 210,
    }[kind]
    blocks = raw.reshape(-1, block)
    scales = np.random.default_rng(seed + 1).uniform(-0.1, 0.1, (len(blocks), count)).astype(np.float16)
    blocks[:, offset : offset + 2 * count] = scales.view(np.uint8)
    return raw


def write_gguf(
    path: Path, kind: str, *, arch: str = "llama"
) -> tuple[Checkpoint, dict[str, NDArray[np.uint8]]]:
    """A one-layer model whose matrices are random blocks of one format, and those blocks."""
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    writer = GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    raw = {name: random_blocks(kind, shape, i) for i, (name, shape) in enumerate(MATRICES.items())}
    for name, rows in raw.items():
        writer.add_tensor(
            f"{name}.weight",
            rows.reshape(len(rows), -1),
            raw_dtype=GGMLQuantizationType[names.get(kind, kind.upper())],
        )
    for name in "qkv" if arch == "qwen2" else "":
        bias = np.arange(MATRICES[f"blk.0.attn_{name}"][0], dtype=np.float32)
        writer.add_tensor(f"blk.0.attn_{name}.bias", bias)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_checkpoint(path), raw


def values(kind: str, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The library's own reading of rows."""
    if kind in PLAIN:
        return rows.view(PLAIN[kind]).astype(np.float32)
    return dequantize(rows, GGMLQuantizationType["BF16" if kind == "bfloat16" else kind.upper()])


def in_order(stored: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo what the converter of llama files does to q and k: head by head, rows of pairs back into
    halves."""
    return stored.reshape(heads, -1, 2, stored.shape[-1]).swapaxes(1, 2).reshape(stored.shape)


def tensor(weights: Weights, name: str) -> torch.Tensor:
    weight = weights[name]
    assert isinstance(weight, torch.Tensor)
    return weight


@pytest.mark.parametrize("kind", [*SCALES, "iq4_nl", "float32", "float16", "bfloat16"])
def test_each_format_is_decoded_exactly_and_in_order(tmp_path: Path, kind: str) -> None:
    """Protects: dequantization against the gguf library, q and k rows put in order, parts stacked."""
    checkpoint, raw = write_gguf(tmp_path / "m.gguf", kind)
    weights = load_weights(checkpoint, dense(torch.float32))
    want = {name: values(kind, rows) for name, rows in raw.items()}
    qkv = [
        in_order(want["blk.0.attn_q"], HEADS),
        in_order(want["blk.0.attn_k"], KV_HEADS),
        want["blk.0.attn_v"],
    ]
    assert np.array_equal(tensor(weights, "layers.0.attn.qkv.weight").numpy(), np.concatenate(qkv))
    gate_up = np.concatenate([want["blk.0.ffn_gate"], want["blk.0.ffn_up"]])
    assert np.array_equal(tensor(weights, "layers.0.mlp.gate_up.weight").numpy(), gate_up)
    assert np.array_equal(tensor(weights, "embed.weight").numpy(), want["token_embd"])
    assert tensor(weights, "final_norm.weight").dtype == torch.float32
    assert set(weights) == {name for name, _ in checkpoint.spec.params()}


def test_qwen_files_keep_their_row_order(tmp_path: Path) -> None:
    """Protects: only llama files are interleaved; biases are stacked like their weights."""
    checkpoint, raw = write_gguf(tmp_path / "m.gguf", "q8_0", arch="qwen2")
    weights = load_weights(checkpoint, dense(torch.float32))
    qkv = np.concatenate([values("q8_0", raw[f"blk.0.attn_{n}"]) for n in "qkv"])
    assert np.array_equal(tensor(weights, "layers.0.attn.qkv.weight").numpy(), qkv)
    sizes = (HEADS * WIDTH, KV_HEADS * WIDTH, KV_HEADS * WIDTH)
    bias = np.concatenate([np.arange(rows, dtype=np.float32) for rows in sizes])
    assert np.array_equal(tensor(weights, "layers.0.attn.qkv.bias").numpy(), bias)


@pytest.mark.parametrize("kind", list(SCALES))
def test_blocks_reach_a_packing_unpacked_and_in_order(tmp_path: Path, kind: str) -> None:
    """Protects: a scheme gets the file's own blocks, rows in our order, equal to the dense reading."""
    checkpoint, _ = write_gguf(tmp_path / "m.gguf", kind)
    seen: dict[str, tuple[GgufBlocks, ...]] = {}

    class Spy(Dense):
        def pack(self, weight: SourceWeight, device: torch.device) -> torch.Tensor:
            blocks = weight.blocks()
            if blocks is not None:
                seen[weight.name] = blocks
            return weight.dense(torch.float32, device)

    weights = load_weights(checkpoint, lambda name, param: Spy(torch.float32))
    assert set(seen) == {name for name, param in checkpoint.spec.params() if len(param.shape) == 2}
    for name, blocks in seen.items():
        rows = np.concatenate([dequantize(b.raw_RB, GGMLQuantizationType[b.kind.upper()]) for b in blocks])
        assert np.array_equal(rows, tensor(weights, name).numpy())
        assert sum(b.rows for b in blocks) == len(rows) and all(b.columns == rows.shape[1] for b in blocks)


def test_safetensors_are_converted_and_stacked(tmp_path: Path) -> None:
    """Protects: bf16 files in float32 and back, exact both ways, from several shards."""
    shape = open_shape(
        "smollm2-135m",
        overrides=dict(
            num_hidden_layers=1,
            vocab_size=64,
            intermediate_size=32,
            hidden_size=18,
            max_position_embeddings=64,
        ),
    )
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for name, param in shape.spec.params():
        for part in weight_sources(shape.spec)[name].parts:
            rows = param.shape[0] if part.rows is None else part.rows
            tensors[part.name] = torch.randn(rows, *param.shape[1:], generator=random).bfloat16()
    names = sorted(tensors)
    for i, half in enumerate((names[::2], names[1::2]), 1):
        save_file({n: tensors[n] for n in half}, tmp_path / f"model-0000{i}-of-00002.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(dict(shape.config)))
    checkpoint = open_checkpoint(tmp_path)
    exact = load_weights(checkpoint, dense(torch.float32))
    short = load_weights(checkpoint, dense(torch.bfloat16))
    layer = "model.layers.0.self_attn"
    qkv = torch.cat([tensors[f"{layer}.{n}_proj.weight"] for n in "qkv"])
    assert torch.equal(tensor(short, "layers.0.attn.qkv.weight"), qkv)
    assert torch.equal(tensor(exact, "layers.0.attn.qkv.weight"), qkv.float())


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("float32", b"\x00\x00\xc0\x7f"), ("float16", b"\x00\x7c"), ("q4_1", b"\x00\x7e"), ("q6_k", None)],
)
@pytest.mark.parametrize("packed", [False, True])
def test_nan_and_inf_are_refused_by_name(
    tmp_path: Path, kind: str, damage: bytes | None, packed: bool
) -> None:
    """Protects: one bad value, or one bad scale on the packed road, names its file and tensor."""
    path = tmp_path / "m.gguf"
    found = write_gguf(path, kind)[0].tensors["blk.0.ffn_down.weight"]
    data = bytearray(path.read_bytes())
    at = found.offset_bytes + (3 * 20 if kind == "q4_1" else 0)
    if damage is None:
        damage, at = b"\x00\x7e", found.offset_bytes + 208
    data[at : at + len(damage)] = damage
    path.write_bytes(bytes(data))

    class Blocks(Dense):
        def pack(self, weight: SourceWeight, device: torch.device) -> torch.Tensor:
            return torch.zeros(0) if weight.blocks() else super().pack(weight, device)

    packing = Blocks(torch.float32) if packed else Dense(torch.float32)
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor blk\.0\.ffn_down\.weight holds NaN or Inf"):
        load_weights(open_checkpoint(path), lambda name, param: packing)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    """Protects: a tensor of an unreadable type is refused with its name and type."""
    path = tmp_path / "m.gguf"
    write_gguf(path, "float32")
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.ffn_down.weight") + len("blk.0.ffn_down.weight") + 4 + 16
    data[at : at + 4] = (26).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"ffn_down\.weight is stored as int32"):
        load_weights(open_checkpoint(path), dense(torch.float32))


def test_head_of_a_tied_model(tmp_path: Path) -> None:
    """Protects: the head is the embedding, unless its packing differs: then it is packed from the same
    rows."""
    checkpoint, _ = write_gguf(tmp_path / "m.gguf", "float32")
    assert "head.weight" not in load_weights(checkpoint, dense(torch.float32))

    def policy(name: str, param: ParamSpec) -> Packing[Packed | torch.Tensor]:
        return Dense(torch.bfloat16 if name == "head.weight" else torch.float32)

    weights = load_weights(checkpoint, policy)
    assert torch.equal(tensor(weights, "head.weight"), tensor(weights, "embed.weight").bfloat16())


def test_dummy_weights() -> None:
    """Protects: random weights are the same each time, differ by seed and name, and keep activations sane."""
    checkpoint = open_shape("qwen2.5-0.5b", overrides={"num_hidden_layers": 2, "vocab_size": 999})
    first, again = (load_weights(checkpoint, dense(torch.float32)) for _ in range(2))
    assert all(torch.equal(tensor(first, name), tensor(again, name)) for name in first)
    other = load_weights(checkpoint, dense(torch.float32), seed=1)
    gate = "layers.{}.mlp.gate_up.weight"
    assert not torch.equal(tensor(first, gate.format(0)), tensor(other, gate.format(0)))
    assert not torch.equal(tensor(first, gate.format(0)), tensor(first, gate.format(1)))
    assert tensor(first, gate.format(0)).std() == pytest.approx(896**-0.5, rel=0.01)
    assert tensor(first, "final_norm.weight").mean() == pytest.approx(1, abs=0.02)
    assert torch.linalg.matrix_rank(tensor(first, "layers.0.attn.out.weight")) == 896
    with_head = load_weights(
        checkpoint, lambda name, param: Dense(torch.bfloat16 if name == "head.weight" else torch.float32)
    )
    assert torch.equal(tensor(with_head, "head.weight"), tensor(with_head, "embed.weight").bfloat16())


@pytest.mark.parametrize("kind", ["bfloat16", "q4_1"])
def test_memory_stays_within_the_weights_and_one_tensor(tmp_path: Path, kind: str) -> None:
    """Protects: streaming. Peak anonymous memory of a fresh process above its imports, sampled while it
    loads."""
    path = tmp_path / "m.gguf"
    layers, hidden, inner, vocab = 4, 512, 2048, 4096
    writer = GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, layers),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, hidden),
        (writer.add_feed_forward_length, inner),
        (writer.add_head_count, 8),
        (writer.add_head_count_kv, 8),
    ):
        add(value)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {"token_embd": (vocab, hidden), "output_norm": (hidden,)}
    for i in range(layers):
        shapes |= {f"blk.{i}.attn_{n}": (hidden, hidden) for n in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{n}": (inner, hidden) for n in ("gate", "up")}
        shapes |= {
            f"blk.{i}.ffn_down": (hidden, inner),
            f"blk.{i}.attn_norm": (hidden,),
            f"blk.{i}.ffn_norm": (hidden,),
        }
    for seed, (name, shape) in enumerate(shapes.items()):
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        else:
            writer.add_tensor(
                f"{name}.weight",
                np.tile(random_blocks(kind, (64, shape[1]), seed), (shape[0] // 64, 1)),
                raw_dtype=GGMLQuantizationType["BF16" if kind == "bfloat16" else kind.upper()],
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    script = Path(__file__).with_name("peak_memory.py")
    out = subprocess.run(
        [sys.executable, str(script), str(path)], capture_output=True, text=True, timeout=100, check=True
    )
    report = json.loads(out.stdout)
    assert report["weights_bytes"] > 70e6 and report["largest_bytes"] < 10e6
    assert report["peak_bytes"] <= report["weights_bytes"] + report["largest_bytes"], report


def test_progress_shows_only_long_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects: short loads are silent, long ones say how far they are and end at 100 %."""
    clock = VirtualClock()
    with Progress("loading weights", 100, clock=clock) as bar:
        bar.advance(50)
        assert capsys.readouterr().err == ""
        clock.advance_to(4.0)
        bar.advance(25)
        assert "75%, 1 s left" in capsys.readouterr().err
        bar.advance(25)
    assert "100%" in capsys.readouterr().err
    with Progress("loading weights", 100, shown=False, clock=clock) as bar:
        clock.advance_to(40.0)
        bar.advance(100)
    assert capsys.readouterr().err == ""
