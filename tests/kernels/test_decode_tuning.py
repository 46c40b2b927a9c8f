"""Protects the choice of a decode linear's kernel: measured first, always launchable, its file readable."""

from pathlib import Path

import pytest
import torch

from ridgeline.base.errors import ConfigError
from ridgeline.bench.tiles import candidates
from ridgeline.kernels.cublaslt import open_cublaslt
from ridgeline.kernels.decode_linear.tuning import (
    BEYOND,
    BUCKETS,
    GUESSED_ROWS,
    LARGE,
    MAX_ROWS,
    MAX_TILES,
    Choice,
    Entry,
    LinearShape,
    Tuning,
    own_file,
    shared_bytes,
    tuning_for,
)

SHARED = 227 << 10
H200 = "NVIDIA H200"
QKV = LinearShape(n=6144, k=4096, norm=True)
ODD = LinearShape(n=11008, k=5120, norm=True, gated=True)
TINY = LinearShape(n=48, k=40)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))


def launchable(choice: Choice, shape: LinearShape, rows: int) -> bool:
    if choice.form == "gemv":
        return rows == 1
    if choice.by_library:
        return rows >= GUESSED_ROWS and (choice.form == "lt") == bool(choice.algorithm)
    tiles = -(-shape.n // choice.block_n)
    return (choice.form in ("dot", "tma") and rows > 1 and shared_bytes(shape, rows, choice) <= SHARED
            and (choice.split == 1 or tiles <= MAX_TILES) and not (choice.form == "tma" and shape.norm
                                                                   and not choice.norm_apart))


@pytest.mark.parametrize("gpu", [H200, "another"])
@pytest.mark.parametrize("shape", [QKV, ODD, TINY, LinearShape(n=151936, k=1024, norm=True)])
def test_every_choice_can_be_launched(gpu: str, shape: LinearShape) -> None:
    """Also for a bucket that was not measured, whose tile comes from another one."""
    for rows in (*BUCKETS, 2, 17, 100):
        assert launchable(tuning_for(gpu).choose(shape, rows), shape, rows), rows


def test_shipped_entries_are_sound() -> None:
    shipped = tuning_for(H200)
    assert len(shipped.entries) > 40
    for (shape, rows), entry in shipped.entries.items():
        assert rows in (*BUCKETS, *LARGE, BEYOND) and entry.time_us >= 0
        assert entry.choice.by_library or rows <= MAX_ROWS
        assert launchable(entry.choice, shape, rows), entry


def test_what_was_measured_is_what_runs() -> None:
    assert tuning_for(H200).choose(QKV, 1).form == "gemv"
    assert tuning_for(H200).choose(QKV, 128).form == "tma"
    assert tuning_for(H200).choose(QKV, MAX_ROWS + 1).form == "torch"


def test_prompts_take_the_algorithm_of_their_size() -> None:
    """At the very size, else that of all large ones; the library's own choice where nothing was measured."""
    def of(rows: int, name: str) -> Entry:
        return Entry(shape=QKV, rows=rows, choice=Choice(form="lt", algorithm=name), time_us=0.0)

    tuning = Tuning.of("x", [of(192, "some"), of(LARGE[-1], "full"), of(BEYOND, "any")])
    found = {rows: tuning.library(QKV, rows).algorithm
             for rows in (128, 129, 192, 193, 1000, BEYOND - 1, BEYOND, 8000, LARGE[-1], 9000)}
    assert found == {128: "", 129: "some", 192: "some", 193: "", 1000: "", BEYOND - 1: "", BEYOND: "any",
                     8000: "any", LARGE[-1]: "full", 9000: "any"}
    assert tuning.choose(QKV, 8000) == tuning.library(QKV, 8000) and not tuning.library(ODD, 8000).algorithm


def test_a_gpu_with_the_same_processors_takes_what_was_measured() -> None:
    """Until it has measurements of its own, which come first there too."""
    h100, mine = "NVIDIA H100 80GB HBM3", Choice(form="gemv", block_n=1, block_k=256)
    assert tuning_for(h100).entries == tuning_for(H200).entries and not tuning_for("NVIDIA A100").entries
    Tuning.of(h100, [Entry(shape=QKV, rows=1, choice=mine, time_us=1e6)]).save(own_file(h100))
    assert tuning_for(h100).choose(QKV, 1) == mine != tuning_for(H200).choose(QKV, 1)


def test_there_is_no_library_without_a_gpu() -> None:
    assert open_cublaslt(torch.device("cpu")) is None


def test_own_measurements_come_before_shipped_ones() -> None:
    """Even where they are slower: they were made on this very machine."""
    mine = Entry(shape=QKV, rows=1, choice=Choice(form="gemv", block_n=1, block_k=256), time_us=1e6)
    Tuning.of(H200, [mine]).save(own_file(H200))
    found = tuning_for(H200)
    assert found.choose(QKV, 1) == mine.choice and found.choose(QKV, 64) == tuning_for(H200).choose(QKV, 64)
    assert len(found.entries) > 40


def test_a_file_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    saved = Tuning.of("x", [
        Entry(shape=ODD, rows=64, choice=Choice(form="dot", block_n=64, block_k=64), time_us=2.0),
        Entry(shape=ODD, rows=64, choice=Choice(form="torch"), time_us=1.0)])
    assert [e.choice.form for e in saved.entries.values()] == ["torch"]
    saved.save(tmp_path / "t.json")
    assert Tuning.load((tmp_path / "t.json").read_text(), "t.json") == saved


@pytest.mark.parametrize("text", ["", "[]", '{"gpu": "x"}', '{"gpu": "x", "entries": [{"n": 1}]}'])
def test_a_damaged_file_says_which_and_what_to_do(text: str) -> None:
    with pytest.raises(ConfigError, match=r"t\.json .*--tune"):
        Tuning.load(text, "t.json")


@pytest.mark.parametrize("shape", [QKV, ODD, TINY])
def test_candidates_can_be_launched(shape: LinearShape) -> None:
    for rows in BUCKETS:
        found = [c for c in candidates(shape, rows) if c.form != "torch"]
        assert all(launchable(c, shape, rows) for c in found)
        assert found or shape is TINY
