"""The text classifier and the embedding model of the benchmarks."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

from benchmarks import text_model
from benchmarks.peers.text import EmbedTexts
from smallplates.models.folder import Model
from smallplates.models.task_kinds import EMBEDDING, TEXT_CLASSIFICATION


def test_it_is_an_export_whose_padding_changes_nothing(tmp_path: Path) -> None:
    text_model.make(tmp_path, width=24, layers=2)
    description = Model.read(tmp_path).description
    assert (description.task, description.labels) == (TEXT_CLASSIFICATION, ["NEGATIVE", "POSITIVE"])
    session = ort.InferenceSession(tmp_path / "model.onnx")
    ids = np.array([[2, 300, 301, 3, 0, 0], [2, 300, 301, 302, 303, 3]])
    both = session.run(None, {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)})[0]
    alone = session.run(None, {"input_ids": ids[:1, :4], "attention_mask": np.ones((1, 4), np.int64)})[0]
    assert both.shape == (2, 2)
    np.testing.assert_allclose(both[:1], alone, atol=1e-5)
    assert not np.allclose(both[0], both[1], atol=1e-5)


def test_the_embedding_model_is_one_of_sentence_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_model, "EMBEDDING_WIDTH", 24)
    folder = text_model.ensure_embedding(tmp_path)
    description = Model.read(folder).description
    assert description.task == EMBEDDING
    pipeline = description.embedding_pipeline
    assert (pipeline.pooling, pipeline.normalize) == ("mean", True)
    embed, texts = EmbedTexts(str(folder)), text_model.texts(4)
    vectors = embed(texts)
    assert vectors.shape == (4, 24)
    np.testing.assert_allclose((vectors**2).sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(vectors[:1], embed(texts[:1]), atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_its_texts_have_five_to_sixty_tokens(tmp_path: Path) -> None:
    text_model.make(tmp_path, width=12, layers=1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoded = tokenizer.encode_batch(text_model.texts(400))
    lengths = {len(encoding.ids) for encoding in encoded}
    assert lengths == set(range(5, 61))
    assert text_model.texts(3) == text_model.texts(3) != text_model.texts(3, seed=1)
    assert {(encoding.tokens[0], encoding.tokens[-1]) for encoding in encoded} == {("[CLS]", "[SEP]")}
