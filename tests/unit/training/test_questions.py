"""`training/questions.py`: the service's own steps, and a folder that both backends serve alike."""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from onnx import TensorProto
from safetensors.torch import load_file, save_file

from fastapi_onnx import graph_file
from fastapi_onnx.backend import OnnxBackend
from fastapi_pt.backend import TorchBackend
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.tasks.text import WINDOW
from tests.command_line import run
from tests.unit.training import berts
from training import evaluate, float8, loop, minilm, questions, squad

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

THINGS = ["bread", "soup", "door", "oven", "roof", "jar"]
LOOKS = ["green", "warm", "old", "blue", "small", "red", "new", "cold"]
WORDS = [*THINGS, *LOOKS, "the", "was", "and", "what", "кухня", "[unused0]"]
MARKS = ["?", ".", ",", "\N{EN DASH}"]
LETTERS = [start + letter for letter in "abcdefghijklmnopqrstuvwxyz" for start in ("", "##")]
VOCABULARY = [*minilm.SPECIAL, *LETTERS, *MARKS, *WORDS]
LONG = "The old door was red. " * 100

app = typer.Typer()
app.command()(questions.main)


def article(count: int) -> dict[str, Any]:
    """Paragraphs of three sentences, each with a question."""
    chance, paragraphs = random.Random(count), []
    for number in range(count):
        things, looks = chance.sample(THINGS, 3), chance.sample(LOOKS, 3)
        pairs = zip(things, looks, strict=True)
        context = " ".join(f"The {thing} was {look}." for thing, look in pairs)
        thing, look = things[number % 3], looks[number % 3]
        answers = [{"text": look, "answer_start": context.index(look)}]
        paragraphs.append({"context": context, "qas": [{"question": thing, "answers": answers}]})
    return {"title": "kitchen", "paragraphs": paragraphs}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the training reads."""
    made = tmp_path_factory.mktemp("data")
    asked, start = made / "data" / squad.FOLDER, made / "data" / minilm.FOLDER
    asked.mkdir(parents=True)
    start.mkdir(parents=True)
    for name, count in (("train", 64), ("val", 6)):
        with gzip.open(asked / f"{name}.json.gz", "wt", encoding="utf-8") as file:
            json.dump({"data": [article(count)]}, file)
    network = berts.network(VOCABULARY, positions=WINDOW + 8)
    (start / "tokenizer.json").write_text(json.dumps(berts.tokenizer(VOCABULARY)))
    (start / "config.json").write_text(json.dumps(network.config.to_dict()))
    save_file(network.state_dict(), start / "model.safetensors")
    return made


@pytest.fixture(scope="module", autouse=True)
def plan() -> Iterator[None]:
    """Replaces the plan of the training by a short one."""
    short = replace(questions.PLAN, epochs=3, batch_size=16, peak=2e-3, decay_epochs=2, ema_decay=0.8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "PLAN", short)
        patch.setattr(evaluate, "PRECISIONS", ("fp32",))
        yield


@pytest.fixture(scope="module")
def folder(data: Path) -> Path:
    """A model's folder, as the command makes it."""
    run(app, "--data", data, "--run", data / "run", "--out", data / "questions")
    return data / "questions"


def test_the_loss_falls_and_the_card_has_the_figures(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert lines[-1]["loss"] < lines[0]["loss"] / 1.5
    figures = Model.read(folder).description.accuracy["val"]
    assert isinstance(figures, dict)
    assert figures["questions"] == 6
    text = (folder / "MODEL_CARD.md").read_text()
    assert f"| 6 | {figures['f1']:.1%}".replace("%", " %") in text
    assert "$" not in text


def test_both_backends_answer_alike(folder: Path) -> None:
    model, settings = Model.read(folder), Settings(device="cpu", precision="fp32")
    asked = squad.read(folder.parent / "data" / squad.FOLDER / "val.json.gz")
    logits, answers = [], []
    for backend in (OnnxBackend(), TorchBackend()):
        backend.load(model, settings)
        task, infer = evaluate.asker(model, settings, backend)
        long = task.preprocess({"question": "soup", "context": f"{LONG} \N{FLYING SAUCER} {LONG}"})
        logits.append([infer(item) for item in long.items])
        answers.append([evaluate.answer_to(task, infer, each)[0] for each in asked])
    for one, other in zip(*logits, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    assert answers[0] == answers[1]


def test_large_weights_are_stored_once_and_in_8_bits(folder: Path) -> None:
    weights = folder / "1" / "model.safetensors"
    large = {name for name, tensor in load_file(weights).items() if float8.is_large(tensor)}
    referred = graph_file.tensors_outside(weights.with_name("model.onnx"))
    assert {tensor.name.removesuffix(".float8") for tensor in referred} == large != set()
    assert {tensor.data_type for tensor in referred} == {TensorProto.FLOAT8E4M3FN}


def test_a_training_that_was_stopped_can_be_exported(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise InterruptedError

    options = ("--data", data, "--run", tmp_path / "run", "--out", tmp_path / "questions")
    monkeypatch.setattr(loop.Training, "save", stop)  # at the end of the first epoch
    with pytest.raises(InterruptedError):
        run(app, *options)
    run(app, *options, "--finish")
    assert Model.read(tmp_path / "questions").has("model.onnx")
    assert len((tmp_path / "questions" / "training.jsonl").read_text().splitlines()) == 1


def test_answers_keep_their_places_in_the_windows_of_the_service(folder: Path) -> None:
    task = questions.task_of(folder)
    context = f"{LONG}The jar was green, the soup\N{EN DASH}green. {LONG}"
    asked = squad.Question("What was green?", context, ("jar", "green"), (2204, 2212))
    assert [[context[slice(*place)] for place in each] for each in asked.places()] == [
        ["jar"],
        ["green", "green"],
    ]
    windows = list(questions.Asked(task, [asked]).windows(0, asked.question))
    with_answer = [window for window in windows if window.answers != [[(0, 0)]]]
    assert 1 <= len(with_answer) < len(windows)
    for window in windows:
        assert window.counts[0]
        assert window.counts.sum() < len(window.counts) - 4  # the question
    for window in with_answer:
        ids = window.item[0].tolist()
        said = {task.tokenizer.decode(ids[s : e + 1]) for spans in window.answers for s, e in spans}
        assert said == {"jar", "green"}


def test_questions_are_typed_in_several_ways() -> None:
    chance = random.Random(1)
    typed = {questions.as_typed("What was green?", chance) for _ in range(200)}
    assert {"What was green?", "What was green"} < typed
    assert questions.as_typed("?", chance) == "?"


@pytest.mark.parametrize(
    ("said", "f1", "exact"),
    [
        ("The green jar!", 1, 1),
        ("jar", 2 / 3, 0),
        ("a very old green jar", 2 / 3, 0),
        ("soup", 0, 0),
        ("", 0, 0),
    ],
)
def test_answers_are_compared_word_by_word(said: str, f1: float, exact: float) -> None:
    asked = squad.Question("What?", "", ("oven", "a green jar"), (0, 0))
    assert squad.scores([said], [asked]) == pytest.approx({"f1": f1, "exact": exact})
