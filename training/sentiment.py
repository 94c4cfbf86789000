"""Sentiment model: makes models/sentiment from phrases and sentences of film reviews.

Several networks are trained first; the one that is served learns from their mean answer as well as from
the labels. All see the texts as people type them: capitals, emoji, typing errors, punctuation.

`python -m training.sentiment --data DIR --run RUN`; DIR holds data/sst2/. An interrupted training goes
on from RUN; a finished one is not repeated.
"""

import gzip
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import torch
import typer
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from fastapi_pt.text_cnn import ARCHITECTURE, INPUTS, LOGITS, TextCnn
from smallplates.cli import export
from smallplates.export import torch_export
from smallplates.models.description import ModelDescription, TextPipeline
from smallplates.models.huggingface import TOKENIZER
from smallplates.models.task_kinds import TEXT_CLASSIFICATION
from training import card, evaluate, loop
from training.calibration import fit_temperature

CARD = Path(__file__).with_name("sentiment.card.md")

LABELS = ("negative", "positive")
PAD, UNKNOWN = "[PAD]", "[UNK]"
VOCABULARY = 12_000
MAX_TOKENS = 256
WORDS = r"\w+(?:'\w+)*|[^\w\s]"
TREEBANK = {
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "``": '"',
    "''": '"',
    **{f" {end}": end for end in ("n't", "'s", "'re", "'ve", "'ll", "'d", "'m")},
}
"""What the normaliser replaces: the treebank separates what people type as one word."""

PLEASED = (":)", ":-)", ":D", "<3", *"😀😃😄😁😊🙂😍🥰😘🤩😎👍👏🙌❤💖🎉🔥⭐💯😂🤣😋🥳")
DISPLEASED = (":(", ":-(", ":'(", ":/", *"😞😢😭😠😡🤬👎😒🙄😤😩😫🤮🤢💩💔😴🥱😑😕☹😖")
NEUTRAL = "🎬🍿🎥📺🤔😐👀📖🍕"

SMOOTHING = 0.1
TAUGHT = 0.7
"""Weight of the teachers' answer beside the label's."""

PART = 32
"""Texts of similar length that are padded together."""

SEEDS = (1, 2, 3)
"""Of the networks that teach."""

TEACHER_DIMENSIONS, STUDENT_DIMENSIONS = 192, 128
"""Of an embedding; these are most of the files' bytes."""

TEACHER = loop.Plan(epochs=4, batch_size=128, peak=2e-3, decay_epochs=3)
STUDENT = loop.Plan(epochs=7, batch_size=128, peak=2e-3, decay_epochs=5)


def read(path: Path) -> tuple[list[str], Tensor]:
    """Reads sentences and their classes, int64 [N], from a file with a header, a tab between them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").rsplit("\t", 1) for line in file][1:]
    return [text for text, _ in rows], torch.tensor([int(label) for _, label in rows])


def tokenizer_of(texts: Sequence[str]) -> Tokenizer:
    """Makes a tokeniser of parts of words, blind to case and accents."""
    made = Tokenizer(models.BPE(unk_token=UNKNOWN))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            *(normalizers.Replace(old, new) for old, new in TREEBANK.items()),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "removed", invert=True),
            pre_tokenizers.Metaspace(prepend_scheme="always", split=False),
        ]
    )
    made.decoder = decoders.Metaspace()
    alphabet = {character for text in (*PLEASED, *DISPLEASED, *NEUTRAL) for character in text}
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[PAD, UNKNOWN],
        show_progress=False,
        initial_alphabet=sorted(alphabet | {chr(code) for code in range(33, 127)}),
    )
    made.train_from_iterator(texts, trainer)
    return made


def as_typed(text: str, label: int, chance: random.Random) -> str:
    """Changes a text as people do who type it: fewer or more marks, emoji, letters left out or swapped.

    Case needs no change: the tokeniser is blind to it.
    """
    words = text.split(" ")
    if len(words) > 3:
        words = [word for word in words if chance.random() > 0.05]
    if chance.random() < 0.15:
        place = chance.randrange(len(words)) if words else 0
        words[place : place + 1] = [mistyped(word, chance) for word in words[place : place + 1]]
    text = " ".join(words)
    if chance.random() < 0.4:
        text = text.rstrip(" .") + chance.choice(("", "", ".", "!", "!!", "!!!", "...", " ..."))
    if chance.random() < 0.08:
        text += " " + chance.choice(PLEASED if label else DISPLEASED) * chance.choice((1, 1, 2, 3))
    if chance.random() < 0.03:
        text += " " + chance.choice(NEUTRAL)
    return text


def mistyped(word: str, chance: random.Random) -> str:
    """Leaves out, doubles or swaps a letter of a longer word."""
    if len(word) < 5:
        return word
    place = chance.randrange(1, len(word) - 1)
    pair = word[place : place + 2]
    return word[:place] + chance.choice((pair[1:], pair[0] + pair, pair[::-1])) + word[place + 2 :]


def tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokenises a batch; returns its tokens and mask, both int64 [N, T]."""
    lists = [encoding.ids[:MAX_TOKENS] or [1] for encoding in tokenizer.encode_batch(texts)]
    most = max(map(len, lists))
    ids = torch.tensor([numbers + [0] * (most - len(numbers)) for numbers in lists])
    return ids, (ids != 0).long()


@torch.no_grad()
def probabilities(networks: Sequence[nn.Module], batch: tuple[Tensor, Tensor]) -> Tensor:
    """Computes the networks' mean probabilities [N, classes]."""
    return torch.stack([network(*batch)[LOGITS].softmax(1) for network in networks]).mean(0)


class Phrases:
    """Texts to learn from, and the networks that teach."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        labels: Tensor,
        teachers: Sequence[nn.Module] = (),
    ) -> None:
        self.tokenizer, self.texts, self.labels, self.teachers = tokenizer, texts, labels, teachers

    def loss(self, model: nn.Module, chosen: Tensor, _: float) -> Tensor:
        """Computes the loss of texts, changed at random."""
        chance = random.Random(int(torch.randint(2**31, ())))
        labels = self.labels[chosen].tolist()
        texts = [as_typed(self.texts[i], labels[n], chance) for n, i in enumerate(chosen.tolist())]
        by_length = sorted(zip(texts, labels, strict=True), key=lambda pair: len(pair[0]))
        total = torch.zeros(())
        for start in range(0, len(by_length), PART):
            part = by_length[start : start + PART]
            batch = tokens(self.tokenizer, [text for text, _ in part])
            truth = functional.one_hot(torch.tensor([label for _, label in part]), len(LABELS))
            targets = truth.float().lerp(torch.tensor(1 / len(LABELS)), SMOOTHING)
            if self.teachers:
                targets = targets.lerp(probabilities(self.teachers, batch), TAUGHT)
            total = total + functional.cross_entropy(model(*batch)[LOGITS], targets, reduction="sum")
        return total / len(by_length)

    def accuracy(self, networks: Sequence[nn.Module]) -> float:
        """Computes the share of texts that the networks name rightly together."""
        hits = 0
        for start in range(0, len(self.texts), 64):
            batch = tokens(self.tokenizer, self.texts[start : start + 64])
            hits += int(
                (probabilities(networks, batch).argmax(1) == self.labels[start : start + 64]).sum()
            )
        return hits / len(self.texts)


def network_of(tokenizer: Tokenizer, dimensions: int, seed: int) -> TextCnn:
    """Makes an untrained network; `dimensions` are those of an embedding."""
    torch.manual_seed(seed)
    network = TextCnn(
        tokenizer.get_vocab_size(), len(LABELS), dimensions, filters=128, widths=(1, 2, 3, 4, 5)
    )
    nn.init.normal_(network.embedding.weight, std=0.1)
    return network


def train(data_dir: Path, run: Path) -> tuple[Tokenizer, Path]:
    """Trains unless RUN is finished; returns the tokeniser and the weights' path."""
    texts, labels = read(data_dir / "train.tsv.gz")
    dev_texts, dev_labels = read(data_dir / "dev.tsv.gz")
    tokenizer = tokenizer_of([text for text in texts if text.count(" ") >= 9])
    dev = Phrases(tokenizer, dev_texts, dev_labels)

    def figures(network: nn.Module) -> dict[str, float]:
        return {"dev": dev.accuracy([network])}

    teachers = []
    for seed in SEEDS:
        teacher = network_of(tokenizer, TEACHER_DIMENSIONS, seed)
        phrases = Phrases(tokenizer, texts, labels)
        plan = replace(TEACHER, seed=seed)
        weights = loop.fit(teacher, len(texts), plan, run / f"teacher-{seed}", phrases.loss, figures)
        teacher.load_state_dict(load_file(weights))
        teachers.append(teacher.eval())
    typer.echo(f"{len(teachers)} teachers together: {dev.accuracy(teachers):.4f} on dev")
    student = network_of(tokenizer, STUDENT_DIMENSIONS, 0)
    phrases = Phrases(tokenizer, texts, labels, teachers)
    return tokenizer, loop.fit(student, len(texts), STUDENT, run / "student", phrases.loss, figures)


def export_to(out: Path, tokenizer: Tokenizer, weights: Path, temperature: float) -> None:
    """Writes the model's folder: graph, weights, tokeniser, model.json."""
    description = ModelDescription(
        name="sentiment",
        version="1",
        title="Good or bad?",
        description="Type a sentence about a film to see whether it sounds positive or negative.",
        task=TEXT_CLASSIFICATION,
        labels=list(LABELS),
        text=TextPipeline(max_tokens=MAX_TOKENS, pad_token_id=tokenizer.token_to_id(PAD)),
        architecture=ARCHITECTURE,
    )
    folder = out / description.version
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / TOKENIZER), pretty=False)
    network = TextCnn.of(load_file(weights))
    torch_export.scale_logits(network, 1 / temperature)
    network = TextCnn.of(torch_export.save_weights(network.state_dict(), folder / "model.safetensors"))
    examples = {name: torch.ones(2, 8, dtype=torch.int64) for name in INPUTS}
    torch_export.write_graph(network, examples, ("N", "tokens"), LOGITS, folder / "model.onnx")
    export.finish(out, description, None)


def main(
    data_dir: Annotated[Path, typer.Option("--data", help="Holds data/sst2/.")],
    run: Annotated[Path, typer.Option(help="Folder for the trainings' logs and checkpoints.")],
    out: Annotated[Path, typer.Option(help="Model folder.")] = Path("models/sentiment"),
) -> None:
    """Trains unless RUN is finished, then writes the whole model folder."""
    sst2 = data_dir / "data" / "sst2"
    tokenizer, weights = train(sst2, run)
    network = TextCnn.of(load_file(weights))
    texts, labels = read(sst2 / "dev.tsv.gz")
    with torch.no_grad():
        logits = torch.cat([network(*tokens(tokenizer, [text]))[LOGITS] for text in texts])
    temperature = fit_temperature(logits, labels)
    export_to(out, tokenizer, weights, temperature)
    evaluate.main(data_dir, [out], write=True)
    with gzip.open(sst2 / "dev.tsv.gz") as file, NamedTemporaryFile(suffix=".tsv") as sentences:
        sentences.write(file.read())
        sentences.flush()
        export.quantise(out, Path(sentences.name))
    figures = {"temperature": f"{temperature:.2f}", "dimensions": STUDENT_DIMENSIONS}
    card.write(out, CARD, run, {**figures, "teachers": len(SEEDS)})


if __name__ == "__main__":
    typer.run(main)
