"""Vectors are those of sentence-transformers, and scores those of its CrossEncoder, on both backends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from torch import nn

from smallplates.cli.export import from_static
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.system.cpus import bf16_objection
from tests import exports
from tests.transformers import encoders
from tests.transformers.answers import BACKENDS, Answers, loaded
from tests.transformers.conftest import service

COSINE, COSINE_BF16 = 0.9999, 0.9995
SCORE = 1e-3
POOLINGS = ["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
Kept = Callable[..., Path]
on_both_backends = pytest.mark.parametrize("backend", BACKENDS)


def vectors(answers: Answers, **fields: Any) -> Array:
    found = answers([{"text": text, **fields} for text in encoders.TEXTS])
    return np.array([best["embedding"] for (best,) in found])


def worst_cosine(ours: Array, theirs: NDArray[np.float32]) -> float:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    assert ours.shape == theirs.shape
    return float(((ours * theirs).sum(1) / lengths).min())


@on_both_backends
@pytest.mark.parametrize(
    ("network", "pooling", "steps"),
    [
        *(("bert", pooling, "") for pooling in POOLINGS),
        ("bert", "mean+max", ""),
        *((network, "mean", "dense, normalize") for network in ("mpnet", "roberta", "modernbert")),
        ("qwen3", "lasttoken", "normalize"),
    ],
)
def test_vectors(backend: str, network: str, pooling: str, steps: str, kept: Kept) -> None:
    folder = kept(encoders.encoder, network, pooling, steps)
    assert Model.read(folder).description.text_pipeline.max_tokens == 512
    theirs, answers = SentenceTransformer(str(folder), device="cpu"), loaded(backend, folder)
    expected, ours = theirs.encode(encoders.TEXTS), vectors(answers)
    assert worst_cosine(ours, expected) >= COSINE
    lengths = np.linalg.norm(expected, axis=1)
    assert np.linalg.norm(ours, axis=1) == pytest.approx(lengths, rel=1e-3)
    prompted = theirs.encode(encoders.TEXTS, prompt_name="query")
    assert worst_cosine(vectors(answers, prompt_name="query"), prompted) >= COSINE
    cut = expected[:, :16] / np.linalg.norm(expected[:, :16], axis=1, keepdims=True)
    assert vectors(answers, dimensions=16, normalize=True) == pytest.approx(cut, abs=1e-3)


@on_both_backends
def test_a_trained_network(backend: str, kept: Kept) -> None:
    folder = kept(encoders.minilm)
    assert Model.read(folder).description.text_pipeline.max_tokens == 256
    theirs = SentenceTransformer(str(folder), device="cpu").encode(encoders.TEXTS)
    assert worst_cosine(vectors(loaded(backend, folder, precision="fp32")), theirs) >= COSINE
    with service(backend, folder) as url:
        answer = requests.post(f"{url}/predict", json={"text": encoders.TEXTS}, timeout=100)
        assert answer.headers["x-input-truncated"] == "true"
        ours = np.array([each["embedding"] for each in answer.json()])
    assert worst_cosine(ours, theirs) >= COSINE_BF16


def test_static_embeddings(tmp_path: Path) -> None:
    module = models.StaticEmbedding(exports.word_piece(), embedding_dim=16)
    theirs = SentenceTransformer(modules=[module, models.Normalize()], device="cpu")
    theirs.save(str(tmp_path / "saved"))
    from_static(str(tmp_path / "saved"), tmp_path / "served")
    ours = vectors(loaded("fastapi_onnx", tmp_path / "served"))
    assert ours == pytest.approx(theirs.encode(encoders.TEXTS), abs=1e-4)


def test_a_trained_network_in_bf16(kept: Kept) -> None:
    folder = kept(encoders.minilm)
    precision = "fp32" if bf16_objection() else "bf16"
    answers = loaded("fastapi_onnx", folder, cpu_runtime="openvino", precision=precision)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(encoders.TEXTS)
    assert worst_cosine(vectors(answers), theirs) >= COSINE_BF16


@on_both_backends
@pytest.mark.parametrize("network", ["bert", "roberta", "modernbert"])
def test_scores(backend: str, network: str, kept: Kept) -> None:
    folder = kept(encoders.cross_encoder, network)
    theirs, answers = CrossEncoder(str(folder), device="cpu"), loaded(backend, folder)
    pairs = [(encoders.QUERY, text) for text in encoders.TEXTS]
    request = {"query": encoders.QUERY, "texts": encoders.TEXTS}
    for raw, activation in ((False, nn.Sigmoid()), (True, nn.Identity())):
        (ranking,) = answers([{**request, "raw_scores": raw}])
        expected = theirs.predict(pairs, activation_fn=activation)
        assert len({round(float(score), 2) for score in expected}) > 3, (
            "the cases cannot tell texts apart"
        )
        ours = {rank["index"]: rank["score"] for rank in ranking}
        assert [ours[index] for index in range(len(pairs))] == pytest.approx(expected, abs=SCORE)
        assert [rank["score"] for rank in ranking] == sorted(ours.values(), reverse=True)
