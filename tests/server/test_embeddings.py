"""Protects /v1/embeddings as OpenAI's client sees it: vectors of length 1 that do not hang on their company,
and refusals.
"""

import base64
from typing import Any

import numpy as np
import pytest

from tests.server.process import Server

M = "SmolLM2-135M-Instruct"
TEXTS = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Interest rates rose by 2 %.", "x"]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_of_a_batch_are_those_of_each_alone(server: Server, pooling: str) -> None:
    client: Any = server.openai().embeddings
    fields: Any = {"model": M, "extra_body": {"pooling": pooling}}
    batch = client.create(input=TEXTS, **fields)
    vectors = np.array([one.embedding for one in batch.data])
    assert [one.index for one in batch.data] == [0, 1, 2, 3] and vectors.shape == (4, 576)
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
    counts = [server.post("/tokenize", {"prompt": text}).json()["count"] for text in TEXTS]
    assert batch.usage.prompt_tokens == batch.usage.total_tokens == sum(counts)
    for text, vector in zip(TEXTS, vectors, strict=True):
        alone = client.create(input=text, encoding_format="float", **fields).data[0].embedding
        assert np.abs(np.array(alone) - vector).max() < 1e-4
    if pooling == "mean":
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_both_encodings_hold_the_same_numbers(server: Server) -> None:
    body = {"model": M, "input": "a cat"}
    numbers = server.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    text = server.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(text), "<f4"), numbers, atol=1e-6)


@pytest.mark.parametrize("change, param, status", [
    ({"input": []}, "input", 400), ({"input": ["a", ""]}, "input", 400),
    ({"input": [5, 99999999]}, "input", 400), ({"input": "word " * 9000}, "input", 400),
    ({"dimensions": 16}, "dimensions", 400), ({"encoding_format": "hex"}, "encoding_format", 400),
    ({"model": "nope"}, "model", 404), ({"pool": "mean"}, "pool", 400),
])  # fmt: skip
def test_refusals(server: Server, change: dict[str, Any], param: str, status: int) -> None:
    assert server.refused("/v1/embeddings", {"model": M, "input": "a"} | change, status)["param"] == param
