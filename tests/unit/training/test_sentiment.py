"""`training/sentiment.py`: texts as people type them, and a folder that both backends serve alike."""

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertModel, DistilBertForSequenceClassification

from fastapi_onnx import graph_file
from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from smallplates.cli import export
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from tests.command_line import run
from tests.unit.training import berts
from training import evaluate, float8, loop, minilm, sentiment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
GOOD = ["a lovely film , and it 's funny", "I do n't regret it , great fun", "lovely , lovely , great"]
BAD = ["a dull film , and it 's slow", "I wo n't see it again , awful", "dull , dull , awful"]
TEXTS = GOOD * 20 + BAD * 20
LABELS = torch.tensor([1] * 60 + [0] * 60)
WORDS = ["a", "lovely", "film", "and", "it", "s", "funny", "i", "don", "t", "regret", "great", "fun"]
WORDS += ["dull", "slow", "won", "see", "again", "awful", "happy", "sad", "кино", "[unused0]"]
MARKS = ["'", ",", ".", "!"]
LETTERS = [start + letter for letter in string.ascii_lowercase for start in ("", "##")]
VOCABULARY = [*minilm.SPECIAL, *LETTERS, *MARKS, *(word for word in WORDS if len(word) > 1)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Of the few words of this test."""
    return sentiment.tokenizer_of(berts.tokenizer(VOCABULARY), TEXTS)[0]


@pytest.fixture(scope="module")
def bert() -> BertModel:
    """An untrained network of the vocabulary."""
    return berts.network(VOCABULARY, positions=300)


def distilled(bert: BertModel) -> DistilBertForSequenceClassification:
    """The network that the training starts with."""
    rows = sentiment.tokenizer_of(berts.tokenizer(VOCABULARY), TEXTS)[1]
    return sentiment.network_of(bert.state_dict(), rows, bert.config.to_dict())


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, bert: BertModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, of a network that knows these words."""
    made = tmp_path_factory.mktemp("models")
    network = distilled(bert)
    phrases = sentiment.Phrases(tokenizer, TEXTS, LABELS)
    plan = loop.Plan(epochs=6, batch_size=12, peak=1e-3, decay_epochs=2, ema_decay=0.9)
    draw = plan.all_once(len(TEXTS))
    weights = loop.fit(network, draw, plan, made / "run", phrases.loss, lambda _: {})
    network.load_state_dict(load_file(weights))
    sentiment.export_to(made / "sentiment", tokenizer, network.eval(), phrases)
    return made / "sentiment"


def backends(folder: Path) -> dict[str, Any]:
    """Functions from a text to logits, by backend."""
    functions = {}
    model, settings = Model.read(folder), Settings(device="cpu", precision="fp32")
    for backend in (OnnxBackend(), TorchBackend()):
        backend.load(model, settings)
        functions[type(backend).__name__] = evaluate.logits_of(model, settings, backend)
    return functions


def test_both_backends_answer_alike_and_rightly(folder: Path) -> None:
    onnx, pt = backends(folder).values()
    for text, label in (
        (f"It{APOSTROPHE}s LOVELY!!! 😀", 1),
        ("Awful. I won't see it again", 0),
        ("🛸", None),
    ):
        np.testing.assert_allclose(onnx(text), pt(text), atol=1e-4)
        assert label is None or onnx(text).argmax() == label


def test_large_weights_are_stored_once_and_in_8_bits(folder: Path) -> None:
    weights = folder / "1" / "model.safetensors"
    large = {name for name, tensor in load_file(weights).items() if tensor.numel() >= float8.LARGE}
    referred = graph_file.tensors_outside(weights.with_name("model.onnx"))
    assert {tensor.name.removesuffix(".float8") for tensor in referred} == large != set()
    assert {tensor.data_type for tensor in referred} == {TensorProto.FLOAT8E4M3FN}
    assert graph_file.data_files(weights.with_name("model.onnx")) == {weights}


def test_int8_files_and_verdict_are_kept_in_model_json(folder: Path, tmp_path: Path) -> None:
    sentences = tmp_path / "dev.tsv"
    lines = [f"{text}\t{label}" for text, label in zip(TEXTS, LABELS.tolist(), strict=True)]
    sentences.write_text("\n".join(["sentence\tlabel", *lines]))
    run(export.quantise_app, folder, "--calibrate", sentences)
    model = Model.read(folder)
    verdict = model.verdict("model_quantized.onnx")
    assert verdict is not None
    assert verdict.fit, verdict.reason
    assert {"1/model_quantized.onnx", "tokenizer.json"} < model.description.files.keys()
    assert model.description.title  # as before
    embeddings = "distilbert.embeddings.word_embeddings.weight.float8"
    referred = graph_file.tensors_outside(model.file("model_quantized.onnx"))
    assert embeddings in {tensor.name for tensor in referred}
    info = OnnxBackend().load(model, Settings(device="cpu", precision="int8"))
    assert info.precision == "int8"


@pytest.mark.parametrize("backend", [OnnxBackend, TorchBackend])
def test_changed_weights_are_refused_by_their_digest(
    folder: Path, tmp_path: Path, backend: type[OnnxBackend | TorchBackend]
) -> None:
    (tmp_path / "1").mkdir()
    for name in ("model.json", "config.json", "tokenizer.json", "tokenizer_config.json", "1/model.onnx"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "1" / "model.safetensors")
    weights["classifier.bias"] += 1
    save_file(weights, tmp_path / "1" / "model.safetensors")
    with pytest.raises(ConfigurationError, match="does not match its SHA-256 in model"):
        backend().load(Model.read(tmp_path), Settings(device="cpu"))


def test_typed_and_treebank_words_are_the_same_tokens(tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode("I do n't regret it , and it 's funny .").tokens
    assert tokenizer.encode(f"I DON{APOSTROPHE}T regret it, and it's fünny.").tokens == expected
    assert "##😀" in tokenizer.encode("funny😀").tokens
    assert "😀" in tokenizer.encode("funny 😀").tokens
