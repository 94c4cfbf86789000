"""`training/sentiment.py`: texts as people type them, and a folder that both backends serve alike."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from fastapi_pt.text_cnn import LOGITS, TextCnn
from smallplates.cli import export
from smallplates.errors import ConfigurationError
from smallplates.models.folder import Model
from smallplates.settings import Settings
from training import evaluate, loop, sentiment

pytestmark = [pytest.mark.slow, pytest.mark.torch]

APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
GOOD = ["a lovely film , and it 's funny", "I do n't regret it , great fun", "lovely , lovely , great"]
BAD = ["a dull film , and it 's slow", "I wo n't see it again , awful", "dull , dull , awful"]
TEXTS = GOOD * 20 + BAD * 20
LABELS = torch.tensor([1] * 60 + [0] * 60)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Of the few words of this test."""
    return sentiment.tokenizer_of(TEXTS)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, of a network that knows these words."""
    made = tmp_path_factory.mktemp("models")
    network = sentiment.network_of(tokenizer, dimensions=32, seed=1)
    phrases = sentiment.Phrases(tokenizer, TEXTS, LABELS)
    plan = loop.Plan(epochs=6, batch_size=12, peak=3e-3, decay_epochs=2, ema_decay=0.9)
    weights = loop.fit(
        network,
        len(TEXTS),
        plan,
        made / "run",
        phrases.loss,
        lambda _: {},
    )
    sentiment.export_to(made / "sentiment", tokenizer, weights, temperature=1.5)
    return made / "sentiment"


def backends(folder: Path) -> dict[str, Any]:
    """Functions from a text to logits, by backend."""
    functions = {}
    model, settings = Model.read(folder), Settings(device="cpu", precision="fp32")
    for backend in (OnnxBackend(), TorchBackend()):
        backend.load(model, settings)
        functions[type(backend).__name__] = evaluate.logits_of(model, settings, backend)
    return functions


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_both_backends_answer_alike_and_rightly(folder: Path) -> None:
    onnx, pt = backends(folder).values()
    for text, label in (
        (f"It{APOSTROPHE}s LOVELY!!! 😀", 1),
        ("Awful. I won't see it again", 0),
        ("🛸", None),
    ):
        np.testing.assert_allclose(onnx(text), pt(text), atol=1e-4)
        assert label is None or onnx(text).argmax() == label


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_padding_changes_nothing(folder: Path) -> None:
    network = TextCnn.of(load_file(folder / "1" / "model.safetensors"))
    ids = torch.tensor([[5, 9, 7, 0, 0, 0], [8, 6, 9, 7, 5, 3]])
    with torch.inference_mode():
        both = network(ids, torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6]))[LOGITS]
        alone = network(ids[:1, :3], torch.ones(1, 3, dtype=torch.int64))[LOGITS]
    torch.testing.assert_close(both[:1], alone)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_int8_files_and_verdict_are_kept_in_model_json(folder: Path, tmp_path: Path) -> None:
    sentences = tmp_path / "dev.tsv"
    lines = [f"{text}\t{label}" for text, label in zip(TEXTS, LABELS.tolist(), strict=True)]
    sentences.write_text("\n".join(["sentence\tlabel", *lines]))
    before = (folder / "1" / "model.onnx").stat().st_size
    result = CliRunner().invoke(export.quantise_app, [str(folder), "--calibrate", str(sentences)])
    assert result.exit_code == 0, result.output
    model = Model.read(folder)
    verdict = model.verdict("model_quantized.onnx")
    assert verdict is not None
    assert verdict.fit, verdict.reason
    assert model.file("model_quantized.onnx").stat().st_size < before
    assert {"1/model_quantized.onnx", "tokenizer.json"} < model.description.files.keys()
    assert model.description.title  # as before
    backend = OnnxBackend()
    info = backend.load(model, Settings(device="cpu", precision="int8"))
    assert info.precision == "int8"


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    weights = load_file(folder / "1" / "model.safetensors")
    with pytest.raises(ConfigurationError, match="not those of text_cnn"):
        TextCnn.of({"fc.weight": torch.zeros(2, 2)})
    with pytest.raises(ConfigurationError, match=r"tensors are missing, such as filters\.0\.bias"):
        TextCnn.of({name: tensor for name, tensor in weights.items() if name != "filters.0.bias"})


def test_changed_weights_are_refused_by_their_digest(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "sentiment"
    (copy / "1").mkdir(parents=True)
    for name in ("model.json", "tokenizer.json", "1/model.safetensors"):
        (copy / name).write_bytes((folder / name).read_bytes())
    save_file({"fc.weight": torch.zeros(2, 2)}, copy / "1" / "model.safetensors")
    with pytest.raises(ConfigurationError, match="does not match its SHA-256 in model"):
        TorchBackend().load(Model.read(copy), Settings(device="cpu"))


def test_typed_and_treebank_words_are_the_same_tokens(tokenizer: Tokenizer) -> None:
    expected = tokenizer.encode("I do n't regret it , and it 's funny .").tokens
    assert tokenizer.encode(f"I DON{APOSTROPHE}T regret it, and it's fünny.").tokens == expected
    assert "😀" in tokenizer.encode("funny😀").tokens


def test_the_tokeniser_is_the_same_each_time(tokenizer: Tokenizer) -> None:
    assert sentiment.tokenizer_of(TEXTS).to_str() == tokenizer.to_str()


def test_texts_are_changed_but_keep_most_of_their_words() -> None:
    chance = random.Random(3)
    words = ["none", "of", "these", "characters", "ever", "stays", "interesting"]
    changed = [sentiment.as_typed(" ".join(words), 0, chance) for _ in range(300)]
    assert len(set(changed)) > 60
    kept = [sum(word in text for word in words) / len(words) for text in changed]
    assert 0.8 < float(np.mean(kept)) < 1
    assert any(mark in text for text in changed for mark in sentiment.DISPLEASED)
    assert not any(mark in text for text in changed for mark in sentiment.PLEASED)
    assert sentiment.mistyped("film", chance) == "film"


def test_a_student_learns_what_its_teachers_say(tokenizer: Tokenizer) -> None:
    class Teacher(torch.nn.Module):
        def forward(self, ids: torch.Tensor, _mask: torch.Tensor) -> dict[str, torch.Tensor]:
            return {LOGITS: torch.tensor([50.0, -50.0]).expand(len(ids), 2)}

    answers = torch.nn.Parameter(torch.zeros(2))

    class Student(torch.nn.Module):
        def forward(self, ids: torch.Tensor, _mask: torch.Tensor) -> dict[str, torch.Tensor]:
            return {LOGITS: answers.expand(len(ids), 2)}

    phrases = sentiment.Phrases(tokenizer, GOOD, LABELS[:3], [Teacher()])
    torch.manual_seed(0)
    phrases.loss(Student(), torch.arange(3), 0).backward()
    assert answers.grad is not None
    share = sentiment.TAUGHT + (1 - sentiment.TAUGHT) * sentiment.SMOOTHING / 2
    assert float(0.5 - answers.grad[0]) == pytest.approx(share)
