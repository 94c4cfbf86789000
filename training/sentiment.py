"""Sentiment model: makes models/sentiment from all-MiniLM-L6-v2 and phrases of film reviews.

The network is fine-tuned as a DistilBERT, to whose architecture its weights fit. Its vocabulary is cut
to what English needs. It sees the texts as people type them: emoji, typing errors, punctuation.

`python -m training.sentiment --data DIR --run RUN`; DIR holds data/sst2/ and
data/weights/all-MiniLM-L6-v2/. An interrupted training goes on from RUN; a finished one is not repeated.
"""

import csv
import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import onnx
import torch
import typer
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from fastapi_onnx.backend import OnnxBackend
from smallplates.cli import export
from smallplates.export import torch_export
from smallplates.models.description import ModelDescription, TextPipeline
from smallplates.models.folder import Model
from smallplates.models.huggingface import TOKENIZER
from smallplates.models.scores import softmax
from smallplates.models.task_kinds import TEXT_CLASSIFICATION
from smallplates.settings import Settings
from training import card, evaluate, float8, loop, minilm
from training.calibration import fit_temperature

CARD = Path(__file__).with_name("sentiment.card.md")
PAIRS = Path(__file__).with_name("sentiment.pairs.tsv")

LABELS = ("negative", "positive")
VOCABULARY = 20_000
"""Pieces of words, before those of emoji are added."""

LATIN = re.compile("[\0-\u024f]+")
MAX_TOKENS = 256
INPUTS = ("input_ids", "attention_mask")
TREEBANK = {
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "``": '"',
    "''": '"',
    **{f" {end}": end for end in ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m")},
}
"""What the normaliser replaces: the treebank separates what people type as one word."""

PLEASED = "😀😃😄😁😊🙂😍🥰😘🤩😎👍👏🙌❤💖🎉🔥⭐💯😂🤣😋🥳"
DISPLEASED = "😞😢😭😠😡🤬👎😒🙄😤😩😫🤮🤢💩💔😴🥱😑😕☹😖"
NEUTRAL = "🎬🍿🎥📺🤔😐👀📖🍕"
ALIKE = {"happy": PLEASED, "sad": DISPLEASED, "film": NEUTRAL}
"""Words whose embeddings emoji start from, since the vocabulary has no emoji."""

SMILING, FROWNING = (":)", ":-)", ":D", "<3", *PLEASED), (":(", ":-(", ":'(", ":/", *DISPLEASED)

LAYER = {
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
"""A DistilBERT's names of what a layer has, and a BERT's."""

SMOOTHING = 0.05
PART = 32
"""Texts of similar length that are padded together."""

FIRST = loop.Plan(
    epochs=1,
    batch_size=64,
    peak=8e-5,
    decay_epochs=0.95,
    warmup_epochs=0.05,
    weight_decay=0.01,
    ema_decay=0.99,
)
SECOND = replace(FIRST, peak=5e-5, ema_decay=0.995, seed=12)
ROUNDS = ((51_200, FIRST), (None, SECOND))
"""How many phrases each round of the training draws, None for all, and how it goes."""


def read(path: Path) -> tuple[list[str], Tensor]:
    """Reads sentences and their classes, int64 [N], from a file with a header, a tab between them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in file][1:]
    return [text for text, _ in rows], torch.tensor([int(label) for _, label in rows])


def tokenizer_of(description: dict[str, Any], texts: Sequence[str]) -> tuple[Tokenizer, list[int]]:
    """Makes a tokeniser with a part of another one's vocabulary, and emoji.

    `description` is the other one's file. Returns also the row of the embeddings that each piece starts
    with.
    """
    vocabulary: dict[str, int] = description["model"]["vocab"]
    pieces = minilm.kept_pieces(description, texts, LATIN, VOCABULARY)
    rows = [vocabulary[piece] for piece in pieces]
    for word, emoji in ALIKE.items():
        pieces += [start + character for character in emoji for start in ("", "##")]
        rows += [vocabulary[word]] * 2 * len(emoji)
    replacements = [
        {"type": "Replace", "pattern": {"String": old}, "content": new} for old, new in TREEBANK.items()
    ]
    normalizer = {"type": "Sequence", "normalizers": [description["normalizer"], *replacements]}
    return minilm.tokenizer_with(description, pieces, normalizer), rows


def as_typed(text: str, label: int, chance: random.Random) -> str:
    """Changes a text as people do who type it: fewer or more marks, emoji, letters left out or swapped.

    Case needs no change: the tokeniser is blind to it.
    """
    words = text.split(" ")
    if len(words) > 3:
        words = [word for word in words if chance.random() > 0.01]
    if chance.random() < 0.15:
        place = chance.randrange(len(words)) if words else 0
        words[place : place + 1] = [with_typing_error(word, chance) for word in words[place : place + 1]]
    text = " ".join(words)
    if chance.random() < 0.4:
        text = text.rstrip(" .") + chance.choice(("", "", ".", "!", "!!", "!!!", "...", " ..."))
    if chance.random() < 0.05:
        text = text.replace(" n't", "nt").replace(" '", "")
    if chance.random() < 0.06:
        text += " " + chance.choice(SMILING if label else FROWNING) * chance.choice((1, 1, 2, 3))
    if chance.random() < 0.02:
        text += " " + chance.choice(NEUTRAL)
    return text


def with_typing_error(word: str, chance: random.Random) -> str:
    """Leaves out, doubles or swaps a letter of a longer word."""
    if len(word) < 5:
        return word
    place = chance.randrange(1, len(word) - 1)
    pair = word[place : place + 2]
    return word[:place] + chance.choice((pair[1:], pair[0] + pair, pair[::-1])) + word[place + 2 :]


def tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Tensor]:
    """Tokenises a batch; returns its tokens and mask, both int64 [N, T]."""
    lists = [encoding.ids[:MAX_TOKENS] for encoding in tokenizer.encode_batch(texts)]
    most = max(map(len, lists))
    ids = torch.tensor([numbers + [0] * (most - len(numbers)) for numbers in lists])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


class Phrases:
    """Texts to learn from."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], labels: Tensor) -> None:
        self.tokenizer, self.texts, self.labels = tokenizer, texts, labels

    def loss(self, model: nn.Module, chosen: Tensor, _: float) -> Tensor:
        """Computes the loss of texts, changed at random."""
        chance = random.Random(int(torch.randint(2**31, ())))
        labels = self.labels[chosen].tolist()
        texts = [as_typed(self.texts[i], labels[n], chance) for n, i in enumerate(chosen.tolist())]
        by_length = sorted(zip(texts, labels, strict=True), key=lambda pair: len(pair[0]))
        total = torch.zeros(())
        weights = float8.round_weights(model)
        with torch.autocast("cpu", torch.bfloat16):
            for start in range(0, len(by_length), PART):
                part = by_length[start : start + PART]
                batch = tokens(self.tokenizer, [text for text, _ in part])
                logits = functional_call(model, weights, (), batch).logits
                truth = torch.tensor([label for _, label in part])
                total = total + functional.cross_entropy(
                    logits.float(), truth, label_smoothing=SMOOTHING, reduction="sum"
                )
        return total / len(by_length)

    def logits(self, network: nn.Module) -> Tensor:
        """Computes logits [N, classes] of all texts as they are."""
        order = sorted(range(len(self.texts)), key=lambda i: len(self.texts[i]))
        rows = torch.empty(len(order), len(LABELS))
        for start in range(0, len(order), PART):
            part = order[start : start + PART]
            rows[part] = network(**tokens(self.tokenizer, [self.texts[i] for i in part])).logits
        return rows

    def accuracy(self, network: nn.Module) -> float:
        """Computes the share of texts that the network names rightly."""
        return float((self.logits(network).argmax(1) == self.labels).float().mean())


def network_of(
    weights: dict[str, Tensor], rows: Sequence[int], config: dict[str, Any]
) -> DistilBertForSequenceClassification:
    """Makes a DistilBERT with the weights of a BERT, as config.json describes it; its head is untrained.

    It has the embeddings' `rows`. A DistilBERT has no types of tokens: the first one's embedding joins
    those of the positions.
    """
    torch.manual_seed(FIRST.seed)
    network = DistilBertForSequenceClassification(
        DistilBertConfig(
            architectures=[DistilBertForSequenceClassification.__name__],
            vocab_size=len(rows),
            max_position_embeddings=MAX_TOKENS,
            dim=config["hidden_size"],
            hidden_dim=config["intermediate_size"],
            n_layers=config["num_hidden_layers"],
            n_heads=config["num_attention_heads"],
            id2label=dict(enumerate(LABELS)),
            label2id={label: number for number, label in enumerate(LABELS)},
        )
    )
    state = network.state_dict()
    embeddings = "distilbert.embeddings."
    types = weights["embeddings.token_type_embeddings.weight"][0]
    state[f"{embeddings}word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"][rows]
    positions = weights["embeddings.position_embeddings.weight"][:MAX_TOKENS] + types
    state[f"{embeddings}position_embeddings.weight"] = positions
    for kind in ("weight", "bias"):
        state[f"{embeddings}LayerNorm.{kind}"] = weights[f"embeddings.LayerNorm.{kind}"]
        for layer in range(config["num_hidden_layers"]):
            for here, there in LAYER.items():
                state[f"distilbert.transformer.layer.{layer}.{here}.{kind}"] = weights[
                    f"encoder.layer.{layer}.{there}.{kind}"
                ]
    network.load_state_dict(state)
    return network


def train(data_dir: Path, run: Path) -> tuple[Tokenizer, DistilBertForSequenceClassification, Phrases]:
    """Trains unless RUN is finished; returns tokeniser, network, and sentences to measure it with."""
    texts, labels = read(data_dir / "sst2" / "train.tsv.gz")
    start = data_dir / minilm.FOLDER
    tokenizer, rows = tokenizer_of(json.loads((start / "tokenizer.json").read_text()), texts)
    dev = Phrases(tokenizer, *read(data_dir / "sst2" / "dev.tsv.gz"))
    config = json.loads((start / "config.json").read_text())
    network = network_of(load_file(start / "model.safetensors"), rows, config)
    for number, (count, plan) in enumerate(ROUNDS, 1):
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(plan.seed))
        drawn = order[:count]
        phrases = Phrases(tokenizer, [texts[each] for each in drawn.tolist()], labels[drawn])
        weights = loop.fit(
            network,
            plan.all_once(len(phrases.texts)),
            plan,
            run / f"round-{number}",
            phrases.loss,
            lambda ema: {"dev": dev.accuracy(ema)},
        )
        network.load_state_dict(load_file(weights))
    return tokenizer, network.eval(), dev


def export_to(
    out: Path, tokenizer: Tokenizer, network: DistilBertForSequenceClassification, dev: Phrases
) -> float:
    """Writes the model's folder; returns the temperature that calibrates it."""
    description = ModelDescription(
        name="sentiment",
        version="1",
        title="Good or bad?",
        description="Type a sentence about a film to see whether it sounds positive or negative.",
        task=TEXT_CLASSIFICATION,
        labels=list(LABELS),
        text=TextPipeline(max_tokens=MAX_TOKENS, pad_token_id=tokenizer.token_to_id(minilm.PAD)),
    )
    folder = out / description.version
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / TOKENIZER), pretty=False)
    weights = folder / "model.safetensors"
    network.load_state_dict(float8.save_weights(network.state_dict(), weights))
    with torch.no_grad():
        logits = dev.logits(network)
    temperature = fit_temperature(logits, dev.labels)
    torch_export.scale_logits(network, 1 / temperature)
    float8.save_weights(network.state_dict(), weights)
    network.config.save_pretrained(out)
    (out / "tokenizer_config.json").write_text(
        json.dumps(minilm.settings(MAX_TOKENS, INPUTS), indent=2) + "\n"
    )
    write_graph(network, folder / "model.onnx", weights)
    export.finish(out, description, None)
    return temperature


def write_graph(network: DistilBertForSequenceClassification, path: Path, weights: Path) -> None:
    """Writes the ONNX graph of a network, which refers to its weights."""
    network.set_attn_implementation("eager")  # fewer nodes, which ONNX Runtime computes faster
    examples = {name: torch.ones(2, 8, dtype=torch.int64) for name in INPUTS}
    graph = torch_export.graph_of(network, examples, ("N", "tokens"), "logits", float8.OPSET)
    onnx.save(float8.refer(graph, weights), path)
    onnx.checker.check_model(path, full_check=True)


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Holds data/sst2/ and data/weights/.")],
    run: Annotated[Path, typer.Option(help="Folder for the trainings' logs and checkpoints.")],
    out: Annotated[Path, typer.Option(help="Model folder.")] = Path("models/sentiment"),
) -> None:
    """Trains unless RUN is finished, then writes the whole model folder."""
    tokenizer, network, dev = train(data_dir / "data", run)
    temperature = export_to(out, tokenizer, network, dev)
    evaluate.main(data_dir, [out], write=True)
    with (
        gzip.open(data_dir / "data" / "sst2" / "dev.tsv.gz") as file,
        NamedTemporaryFile(suffix=".tsv") as sentences,
    ):
        sentences.write(file.read())
        sentences.flush()
        export.quantise(out, Path(sentences.name))
    figures = {
        "temperature": f"{temperature:.2f}",
        "pieces": f"{tokenizer.get_vocab_size():,}",
    }
    card.write(out, CARD, run, {**figures, "answers": "\n".join(answers(out))})


def answers(out: Path) -> Iterator[str]:
    """Yields a row of the card's table for each pair of texts, a positive and a negative one.

    It has what the model says of each, in bold type where that is wrong.
    """
    settings = Settings.model_validate({"device": "cpu", "precision": "fp32"})
    model, backend = Model.read(out), OnnxBackend()
    backend.load(model, settings)
    infer = evaluate.logits_of(model, settings, backend)
    with PAIRS.open(encoding="utf-8", newline="") as file:
        for pair in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if pair == list(reversed(LABELS)):
                continue
            cells = []
            for text, right in zip(pair, reversed(LABELS), strict=True):
                probabilities = softmax(infer(text))
                label = LABELS[int(probabilities.argmax())]
                said = f"{label}, {card.percent(probabilities.max())}"
                cells += [text, said if label == right else f"**{said}**"]
            yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    typer.run(main)
