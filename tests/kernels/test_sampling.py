"""Protects the sampling kernels: the CPU sampler's tokens for any mixture of rows; what Hopper gets."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from ridgeline.base.errors import ConfigError
from ridgeline.engine.timing import captured
from ridgeline.kernels.gpu import Gpu, open_gpu
from ridgeline.kernels.sampling import MAX_VOCAB, Sampling
from tests.kernels.devices import CUDA, interpreted, on_gpu
from tests.kernels.sampling_cases import CASES, MIX, PROMPT, Sides, spread
from tests.kernels.triton_cases import poisoned
from tests.kernels.triton_compiled import compile_for_hopper

INT32 = ("bits", "which", "rows", "lens", "wholes", "marks", "max", "noise", "list", "token", "failed",
         "tokens")
TYPES = {f"{name}_ptr": "*i32" for name in INT32}
TYPES |= {f"{name}_ptr": "*i64" for name in ("seeds", "last", "ids", "ranks")} | {"reals_ptr": "*fp64"}
TYPES |= {f"{name}_ptr": "*fp32" for name in ("bias", "mass", "odd", "values", "logits")}


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    assert interpreted("tests.kernels.sampling_cases", name) == ""


@pytest.mark.parametrize("name", on_gpu(CASES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_the_gpu(name: str, dtype: torch.dtype) -> None:
    with poisoned():
        CASES[name](open_gpu(CUDA), dtype)


@pytest.mark.parametrize("rows", on_gpu([9]))
def test_as_a_graph(rows: int) -> None:
    """Replayed with other logits, positions and requests in the same memory, the tokens of those."""
    gpu, vocab_size, position = open_gpu(CUDA), 5003, len(PROMPT) + 3
    first, second = Sides(gpu, vocab_size, MIX), Sides(gpu, vocab_size, MIX)
    logits = spread(rows + 1, vocab_size, 2.0, torch.float32, 0).to(CUDA)
    at, lens = (torch.zeros(rows, dtype=torch.int32, device=CUDA) for _ in range(2))
    out_2S = torch.zeros(2, rows, dtype=torch.int32, device=CUDA)
    graph = captured(lambda: first.sampling(logits[:rows], at, lens, first.requests, out_2S))
    for turn in range(5):
        order = torch.randperm(rows)
        logits.copy_(spread(rows + 1, vocab_size, 2.0, torch.float32, turn))
        at.copy_(order)
        lens.fill_(position + turn)
        graph.replay()
        assert out_2S[0].tolist() == second.step(logits.cpu(), order.tolist(), position + turn)


@pytest.mark.parametrize(("kernel", "warps"), [("survey", 1), ("raw survey", 1), ("choose", 8),
                                               ("logprobs", 8), ("masked survey", 1), ("masked choose", 8)])
def test_no_register_spills(kernel: str, warps: int, tmp_path: Path) -> None:
    """A vocabulary of 128,256 tokens, with programmatic launch. What chooses under masks may spill a little:
    it runs once a row and is bound by its reads."""
    from ridgeline.kernels.sampling import triton as kernels

    constants: dict[str, object] = {"BLOCK": 128, "PDL": 1}
    constants |= {"TB": 4, "RAW": kernel[0] == "r"} if "survey" in kernel else {"NBP": 1024, "NC": 16}
    chosen, masked = getattr(kernels, f"{kernel.split()[-1]}_kernel"), kernel.startswith("masked")
    constants |= {} if masked else dict.fromkeys({"bits_ptr", "which_ptr"} & set(chosen.arg_names))
    made = compile_for_hopper(chosen, tmp_path, constants=constants, descriptors={}, types=TYPES,
                              num_warps=warps, launch_pdl=True)
    assert made.local_bytes <= (160 if kernel == "masked choose" else 0), made
    assert "griddepcontrol.wait" in made.ptx and "griddepcontrol.launch_dependents" in made.ptx


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    """A token's place in the order has 24 bits."""
    gpu = Gpu(device=torch.device("meta"), name="", processors=1, interpret=True, programmatic=False)
    with pytest.raises(ConfigError, match="16777216"):
        Sampling(gpu, max_rows=1, vocab_size=MAX_VOCAB)
