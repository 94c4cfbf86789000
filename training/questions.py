"""Question-answering model: makes models/questions from all-MiniLM-L6-v2 and questions about paragraphs.

The network is fine-tuned as a BERT that finds where an answer begins and ends. Its vocabulary is cut to
what English needs. Questions and paragraphs become tokens and windows by the steps of the service.

`python -m training.questions --data DIR --run RUN`; DIR holds data/squad-dev/ and
data/weights/all-MiniLM-L6-v2/. An interrupted training goes on from RUN; a finished one is not repeated.
After each epoch RUN has the weights of the best one so far, which `--finish` exports at once.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import numpy as np
import onnx
import torch
import typer
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.func import functional_call
from transformers import BertConfig, BertForQuestionAnswering

from fastapi_onnx.backend import OnnxBackend
from smallplates.cli import export
from smallplates.export import torch_export
from smallplates.export.folder import write_description
from smallplates.models.description import ModelDescription, TextPipeline
from smallplates.models.folder import Model
from smallplates.models.huggingface import TOKENIZER
from smallplates.models.task_kinds import QUESTION_ANSWERING
from smallplates.models.tensors import Array, Item, Signature, TensorSpec
from smallplates.settings import Settings
from smallplates.tasks.question_answering import QuestionAnswering
from smallplates.tasks.text import LENGTH, WINDOW
from training import card, evaluate, float8, loop, minilm, squad
from training.sentiment import with_typing_error
from training.squad import Question

CARD = Path(__file__).with_name("questions.card.md")
CARD_WIDTH = 118
EXAMPLES = Path(__file__).with_name("questions.examples.json")

VOCABULARY = 21_500
"""Pieces of words, few enough for a model of 20 MB."""

ENGLISH = re.compile("[\0-\u024f\u0370-\u03ff\u2000-\u2bff]+")
"""Letters of Latin and Greek, punctuation and symbols."""

GOAL = 0.55
"""F1 on the validation articles; the card says if it is missed."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""In the order of the network's parameters."""

OUTPUTS = ("start_logits", "end_logits")
MASKED = -1e4
PART = 8
"""Windows of similar length that are padded together."""

PLAN = loop.Plan(
    epochs=3,
    batch_size=16,
    peak=1.5e-4,
    decay_epochs=2.5,
    warmup_epochs=0.5,
    weight_decay=0.01,
    ema_decay=0.99,
)

Spans = list[tuple[int, int]]
"""First and last tokens of the places of one answer."""


@dataclass(frozen=True)
class Window:
    """Tokens of a question and a part of its paragraph, and where the answers are."""

    item: Item
    counts: Array
    """Whether each token can begin or end an answer; the first one means that there is none."""

    answers: list[Spans]
    """For each person's answer, those of its places that are in this window."""


class Asked:
    """Questions to learn from, or to measure a network with."""

    def __init__(self, task: QuestionAnswering, questions: Sequence[Question]) -> None:
        self.task, self.questions = task, questions
        self.places = [question.places() for question in questions]

    def windows(self, number: int, question: str) -> Iterator[Window]:
        """Yields the windows of a paragraph, asked in these words."""
        context = self.questions[number].context
        prepared = self.task.preprocess({"question": question, "context": context})
        passage = prepared.context
        firsts, ends = passage.characters.T
        for item, (first, behind) in zip(prepared.items, passage.windows, strict=True):
            before = len(passage.unmasked)
            counts = np.zeros(len(item[0]), bool)
            counts[:before], counts[before : before + behind - first] = passage.unmasked, True
            answers = []
            for places in self.places[number]:
                spans = [
                    (int(np.searchsorted(ends, start, "right")), int(np.searchsorted(firsts, end)) - 1)
                    for start, end in places
                ]
                shift = before - first
                inside = [(s + shift, e + shift) for s, e in spans if first <= s <= e < behind]
                answers += [inside] if inside else []
            yield Window(item, counts, answers or [[(0, 0)]])

    def loss(self, model: nn.Module, chosen: Tensor, _: float) -> Tensor:
        """Computes the loss of questions, changed at random."""
        chance = random.Random(int(torch.randint(2**31, ())))
        windows = [
            window
            for number in chosen.tolist()
            for window in self.windows(number, as_typed(self.questions[number].question, chance))
        ]
        windows.sort(key=lambda window: len(window.item[0]))
        total = torch.zeros(())
        weights = float8.round_weights(model)
        for start in range(0, len(windows), PART):
            part = windows[start : start + PART]
            with torch.autocast("cpu", torch.bfloat16):
                output = functional_call(model, weights, (), batch_of(part))
            total = total + loss_of(output.start_logits.float(), output.end_logits.float(), part)
        return total / len(windows)

    def scores(self, network: nn.Module) -> dict[str, float]:
        """Measures a network as it will be stored, by answers as the service finds them."""
        weights = float8.round_weights(network)

        def infer(item: Item) -> list[Array]:
            tensors = [torch.from_numpy(array)[None] for array in item]
            output = functional_call(network, weights, (), dict(zip(INPUTS, tensors, strict=True)))
            return [output[name][0].numpy() for name in OUTPUTS]

        said = [evaluate.answer_to(self.task, infer, each)[0] for each in self.questions]
        return squad.scores(said, self.questions)


def as_typed(question: str, chance: random.Random) -> str:
    """Changes a question as people do who type it: without its mark, or with a typing error."""
    words = question.split(" ")
    if chance.random() < 0.1:
        place = chance.randrange(len(words))
        words[place] = with_typing_error(words[place], chance)
    text = " ".join(words)
    return text.rstrip(" ?") or text if chance.random() < 0.2 else text


def batch_of(windows: Sequence[Window]) -> dict[str, Tensor]:
    """Pads windows to the longest; returns the network's inputs, int64 [N, T]."""
    most = max(len(window.item[0]) for window in windows)
    return {
        name: torch.from_numpy(np.stack([padded(window.item[number], most) for window in windows]))
        for number, name in enumerate(INPUTS)
    }


def padded(array: Array, size: int) -> Array:
    """Returns an array with zeros up to a size; the token for padding is 0."""
    return np.pad(array, (0, size - len(array)))


def loss_of(start: Tensor, end: Tensor, windows: Sequence[Window]) -> Tensor:
    """Computes the sum of the losses of windows, of logits [N, T].

    If an answer's text is in several places, their probabilities add up: any of them is right.
    """
    counts = torch.from_numpy(np.stack([padded(each.counts, start.shape[1]) for each in windows]))
    starts, ends = (logits.masked_fill(~counts, MASKED).log_softmax(dim=1) for logits in (start, end))
    total = torch.zeros(())
    for row, window in enumerate(windows):
        for spans in window.answers:
            firsts, lasts = torch.tensor(spans).T
            likely = torch.logsumexp(starts[row, firsts] + ends[row, lasts], 0)
            total = total - likely / (2 * len(window.answers))
    return total


def network_of(
    weights: dict[str, Tensor], rows: Sequence[int], config: dict[str, Any]
) -> BertForQuestionAnswering:
    """Makes the network with the weights of a BERT, as config.json describes it; its head is untrained.

    It has the embeddings' `rows`, and positions for one window.
    """
    torch.manual_seed(PLAN.seed)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    network = BertForQuestionAnswering(
        BertConfig(
            architectures=[BertForQuestionAnswering.__name__],
            vocab_size=len(rows),
            max_position_embeddings=WINDOW,
            attention_probs_dropout_prob=0.0,  # which would take a fifth of the time
            **{name: config[name] for name in names},
        )
    )
    state = network.state_dict()
    for name, before in weights.items():
        place = f"bert.{name}"
        if name == "embeddings.word_embeddings.weight":
            state[place] = before[rows]
        elif name == "embeddings.position_embeddings.weight":
            state[place] = before[:WINDOW]
        elif place in state:
            state[place] = before
    network.load_state_dict(state)
    network.set_attn_implementation("eager")  # faster, also in ONNX Runtime, whose graph has fewer nodes
    return network


def tokenizer_of(description: dict[str, Any], texts: Sequence[str]) -> tuple[Tokenizer, list[int]]:
    """Makes a tokenizer with a part of another one's vocabulary.

    `description` is the other one's file. Returns also the rows of the embeddings.
    """
    pieces = minilm.kept_pieces(description, texts, ENGLISH, VOCABULARY)
    tokenizer = minilm.tokenizer_with(description, pieces, description["normalizer"])
    return tokenizer, [description["model"]["vocab"][piece] for piece in pieces]


def write_model_json(out: Path, tokenizer: Tokenizer) -> ModelDescription:
    """Writes the tokenizer and the model's description into a folder."""
    description = ModelDescription(
        name="questions",
        version="1",
        title="Ask a text",
        description="Paste an English paragraph and ask a question to see the answer in the paragraph.",
        task=QUESTION_ANSWERING,
        text=TextPipeline(max_tokens=WINDOW, pad_token_id=tokenizer.token_to_id(minilm.PAD)),
    )
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / TOKENIZER), pretty=False)
    write_description(out, description)
    return description


def task_of(folder: Path) -> QuestionAnswering:
    """Returns the service's steps for questions, without a network."""
    network = Signature(
        "tensor",
        tuple(TensorSpec(name, "int64", (LENGTH,)) for name in INPUTS),
        tuple(TensorSpec(name, "float32", (LENGTH,)) for name in OUTPUTS),
        limits={LENGTH: WINDOW},
    )
    model, settings = Model.read(folder), Settings.model_validate({"device": "cpu"})
    return QuestionAnswering(model, settings, QuestionAnswering.plan(model, settings, network), {})


def train(
    data_dir: Path, start: Path, run: Path, finish: bool
) -> tuple[Tokenizer, BertForQuestionAnswering]:
    """Trains unless RUN is finished, or should be; returns tokenizer and network of the best epoch."""
    questions = squad.read(data_dir / squad.FOLDER / "train.json.gz")
    texts = [*dict.fromkeys(each.context for each in questions), *(each.question for each in questions)]
    tokenizer, rows = tokenizer_of(json.loads((start / TOKENIZER).read_text()), texts)
    config = json.loads((start / "config.json").read_text())
    network = network_of(load_file(start / "model.safetensors"), rows, config)
    if not finish:
        write_model_json(run / "tokens", tokenizer)
        task = task_of(run / "tokens")
        learned = Asked(task, questions)
        measured = Asked(task, squad.read(data_dir / squad.FOLDER / "val.json.gz"))
        loop.fit(network, PLAN.all_once(len(questions)), PLAN, run, learned.loss, measured.scores)
    network.load_state_dict(load_file(run / loop.BEST))
    return tokenizer, network.eval()


def export_to(out: Path, tokenizer: Tokenizer, network: BertForQuestionAnswering) -> None:
    """Writes the model's folder."""
    description = write_model_json(out, tokenizer)
    folder = out / description.version
    folder.mkdir(exist_ok=True)
    weights = folder / "model.safetensors"
    network.load_state_dict(float8.save_weights(network.state_dict(), weights))
    network.config.save_pretrained(out)
    settings = json.dumps(minilm.settings(WINDOW, INPUTS), indent=2)
    (out / "tokenizer_config.json").write_text(f"{settings}\n")
    examples = {name: torch.ones(2, 8, dtype=torch.int64) for name in INPUTS}
    program = torch_export.program_of(network, examples, ("N", "tokens"), OUTPUTS, float8.OPSET)
    onnx.save(float8.refer(program.model_proto, weights), folder / "model.onnx")
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    export.finish(out, description, None)


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Holds data/squad-dev/.")],
    run: Annotated[Path, typer.Option(help="Folder for the training's log and checkpoints.")],
    out: Annotated[Path, typer.Option(help="Model folder.")] = Path("models/questions"),
    weights: Annotated[
        Path | None,
        typer.Option(help="all-MiniLM-L6-v2; by default DATA/data/weights/all-MiniLM-L6-v2."),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Train no further: export the best epoch so far.")
    ] = False,
) -> None:
    """Trains unless RUN is finished, then writes the whole model folder."""
    start = weights or data_dir / "data" / minilm.FOLDER
    tokenizer, network = train(data_dir / "data", start, run, finish)
    export_to(out, tokenizer, network)
    f1 = evaluate.evaluate_questions(Model.read(out), data_dir, write=True)
    examples = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    figures = {
        "pieces": f"{tokenizer.get_vocab_size():,}",
        "goal": "" if f1 >= GOAL else f"\nThe goal was an F1 of {card.percent(GOAL)}.",
        "context": "\n> ".join(wrap(examples["context"], CARD_WIDTH)),
        "answers": "\n".join(answers(out, **examples)),
    }
    card.write(out, CARD, run, figures)


def answers(out: Path, context: str, questions: dict[str, str]) -> Iterator[str]:
    """Yields a row of the card's table for each question about a paragraph that is not of the data.

    It has what the model says, in bold type where that is wrong.
    """
    settings = Settings.model_validate({"device": "cpu", "precision": "fp32"})
    model, backend = Model.read(out), OnnxBackend()
    backend.load(model, settings)
    asked, infer = evaluate.asker(model, settings, backend)
    for question, right in questions.items():
        said, score = evaluate.answer_to(asked, infer, Question(question, context, (), ()))
        words = f"{said}, {card.percent(score)}"
        yield f"| {question} | {words if squad.f1(said, right) else f'**{words}**'} |"


if __name__ == "__main__":
    typer.run(main)
