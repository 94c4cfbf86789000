"""Exports as transformers and optimum write them: random weights, tokenisers trained on the spot."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from optimum.exporters.onnx import main_export
from PIL import Image, ImageOps
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn

from tests import pictures

TOKENS = 512
"""Most tokens of a text."""

LABELS = ["NEGATIVE", "NEUTRAL", "POSITIVE"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
COLOURS = ["red", "green", "blue", "white", "black"]
SIDE = 64
"""Side of an image in pixels."""

SQUARE = {"height": SIDE, "width": SIDE}

SPREAD = 2.0
"""Standard deviation of a logit over the samples, as of networks that are trained."""

TEXTS = [
    "The soup was wonderful and warm.",
    "Awful, dull; never again!",
    "I have had better bread",
    "UPPER CASE, 12,345.67 and e-mail@example.org",
    "Crème brûlée, naïve façade, Ægir, straße, İstanbul",
    "Cre\u0300me bru\u0302le\u0301e of combining marks: a\u0301\u0323\u0308 n\u0303",
    "今天的汤很好喝。美味しいスープでした 맛있는 수프",
    "emoji \U0001f372 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \u2764\ufe0f",
    "tabs\tand\t\tlines\r\n\nand  spaces \u00a0 \u3000 end\t",
    "шерсть и суп, حساء لذيذ, מרק טעים, สุดยอด",
    "markup [SEP] <s> </s> [MASK] <mask> [PAD] in the text",
    "a" * 300,
    "!",
    " ".join(f"word{number % 97} soup" for number in range(2500)),
]
PAIRS = [
    ("The soup was warm.", "Was it?"),
    ("Crème\tbrûlée", "今天的汤 \U0001f372"),
    ("short", "and long " * 200),
    ("long and " * 200, "longer still " * 300),
]
QUESTIONS = ["What was wonderful?", "Où était la crème brûlée 🍲?", "今天\t什么好喝?"]
WORDS = [word for text in TEXTS if len(text) < 200 for word in text.split(" ")]
CONTEXTS = [
    "The bread was dull,\tbut the soup\r\nwas wonderful.",
    *(text for text in TEXTS[4:10]),
    " ".join(WORDS),
]
VERY_LONG = " ".join((TEXTS[0].split() * 1000)[:5000])


def corpus() -> Iterable[str]:
    """What tokenisers are trained with."""
    return [text for text in TEXTS if len(text) < 200] * 20


BART_SIZES = [("layers", 2), ("attention_heads", 4), ("ffn_dim", 128)]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_piece(folder: Path, kind: Any, special: Sequence[str] = BERT_TOKENS) -> Any:
    """A tokeniser of BERT's kind, or of MPNet's."""
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trained.train_from_iterator(
        (text.lower() for text in corpus()),
        trainers.WordPieceTrainer(special_tokens=[*special], vocab_size=600),
    )
    trained.model.save(str(folder))
    return kind(vocab_file=str(folder / "vocab.txt"), model_max_length=TOKENS)


def byte_level(folder: Path, kind: Any, special: list[str]) -> Any:
    """A tokeniser of RoBERTa's kind, or of DeBERTa's."""
    trained = trained_byte_level(special)
    trained.model.save(str(folder))
    files = {"vocab_file": str(folder / "vocab.json"), "merges_file": str(folder / "merges.txt")}
    return kind(**files, model_max_length=TOKENS)


def trained_byte_level(special: list[str]) -> Tokenizer:
    """BPE of bytes, without a post-processor."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        special_tokens=special,
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(corpus(), trainer)
    return trained


def named(labels: Sequence[str]) -> dict[str, Any]:
    """What a configuration says of its labels."""
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: index for index, name in enumerate(labels)},
    }


def sizes(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """What configurations of networks for texts have in common; small."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": TOKENS,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,
        **changes,
    }


def bert(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    tokenizer = word_piece(folder, transformers.BertTokenizerFast)
    config = transformers.BertConfig(**sizes(tokenizer, **changes))
    return getattr(transformers, f"Bert{head}")(config), tokenizer


def distilbert(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """The same without types of tokens."""
    tokenizer = word_piece(folder, transformers.DistilBertTokenizerFast)
    config = transformers.DistilBertConfig(
        **sizes(tokenizer, dim=64, n_layers=2, n_heads=4, hidden_dim=128, **changes)
    )
    return getattr(transformers, f"DistilBert{head}")(config), tokenizer


def roberta(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """The same with positions that begin behind the padding's."""
    tokenizer = byte_level(folder, transformers.RobertaTokenizerFast, ROBERTA_TOKENS)
    longer = {"max_position_embeddings": TOKENS + 2, "type_vocab_size": 1}
    config = transformers.RobertaConfig(**sizes(tokenizer, **longer, **changes))
    return getattr(transformers, f"Roberta{head}")(config), tokenizer


def deberta(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """The same with relative positions."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = byte_level(folder, transformers.DebertaTokenizerFast, special)
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    config = transformers.DebertaConfig(**sizes(tokenizer, **relative, **changes))
    return getattr(transformers, f"Deberta{head}")(config), tokenizer


NETWORKS = {"bert": bert, "distilbert": distilbert, "roberta": roberta, "deberta": deberta}


def bart(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """An encoder and a decoder; its classifiers search for the end of a sentence."""
    tokenizer = byte_level(folder, transformers.BartTokenizerFast, ROBERTA_TOKENS)
    parts = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in BART_SIZES}
    config = transformers.BartConfig(**sizes(tokenizer, d_model=64, init_std=0.2, **parts, **changes))
    return getattr(transformers, f"Bart{head}")(config), tokenizer


def longformer(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """RoBERTa with local attention; for questions, it searches for three ends of a sentence."""
    tokenizer = byte_level(folder, transformers.LongformerTokenizerFast, ROBERTA_TOKENS)
    own = {"max_position_embeddings": TOKENS + 2, "attention_window": [16, 16], "sep_token_id": 2}
    config = transformers.LongformerConfig(**sizes(tokenizer, **own, **changes))
    return getattr(transformers, f"Longformer{head}")(config), tokenizer


def text_classifier(folder: Path, network: str, **changes: Any) -> Path:
    """The folder, then an export for both backends."""
    made = NETWORKS[network], "ForSequenceClassification", {**named(LABELS), **changes}
    return exported(folder, "text-classification", *made, [TEXTS])


def token_classifier(folder: Path, network: str) -> Path:
    made = NETWORKS[network], "ForTokenClassification", named(TAGS)
    return exported(folder, "token-classification", *made, [TEXTS])


def pair_classifier(folder: Path, network: str, *labels: str) -> Path:
    """The same of pairs of texts, of which one may follow from the other."""
    made = NETWORKS[network], "ForSequenceClassification", named(labels)
    return exported(folder, "text-classification", *made, [TEXTS, TEXTS[::-1]])


def question_answerer(folder: Path, network: str) -> Path:
    """The same of questions about a context."""
    return exported(
        folder, "question-answering", NETWORKS[network], "ForQuestionAnswering", {}, [CONTEXTS]
    )


def exported(
    folder: Path,
    task: str,
    network: Callable[..., tuple[Any, Any]],
    head: str,
    changes: dict[str, Any],
    texts: Sequence[Sequence[str]],
) -> Path:
    """The folder, then a network whose logits of these texts, or of their tokens, vary."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    made, tokenizer = network(folder, head, **changes)
    made.eval()
    batch = tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        output = made(**batch)
    both = [output[name] for name in ("start_logits", "end_logits") if name in output]
    logits = torch.stack(both, dim=-1) if both else output.logits
    spread_out(made, logits[batch["attention_mask"].bool()] if logits.dim() == 3 else logits)
    return saved(folder, made, tokenizer, task)


def vit() -> tuple[Any, Any]:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.ViTConfig(**small, **named(COLOURS), intermediate_size=128, image_size=SIDE)
    processor = transformers.ViTImageProcessor(size=SQUARE)
    return transformers.ViTForImageClassification(config), processor


def resnet() -> tuple[Any, Any]:
    thin = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "layer_type": "basic"}
    network = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(**thin, **named(COLOURS))
    )
    return network, transformers.ConvNextImageProcessor(size={"shortest_edge": SIDE}, crop_pct=0.875)


def mobilevit() -> tuple[Any, Any]:
    """Blue first, and not normalised."""
    thin = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64]}
    config = transformers.MobileViTConfig(
        **thin, **named(COLOURS), num_attention_heads=2, image_size=SIDE
    )
    processor = transformers.MobileViTImageProcessor(size={"shortest_edge": 72}, crop_size=SQUARE)
    return transformers.MobileViTForImageClassification(config), processor


def efficientnet() -> tuple[Any, Any]:
    """Single pixels, and divided twice."""
    thin = {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320}
    config = transformers.EfficientNetConfig(**thin, **named(COLOURS), image_size=SIDE)
    std = [0.47853944, 0.4732864, 0.47434163]
    processor = transformers.EfficientNetImageProcessor(size=SQUARE, image_std=std, resample=0)
    return transformers.EfficientNetForImageClassification(config), processor


def poolformer() -> tuple[Any, Any]:
    """A crop of the default share."""
    config = transformers.PoolFormerConfig(
        hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], **named(COLOURS)
    )
    processor = transformers.PoolFormerImageProcessor(size={"shortest_edge": SIDE}, crop_size=SQUARE)
    return transformers.PoolFormerForImageClassification(config), processor


IMAGE_NETWORKS = {made.__name__: made for made in (vit, resnet, mobilevit, efficientnet, poolformer)}


def image_classifier(folder: Path, network: str, **changes: str) -> Path:
    """The folder; `changes` are fields of config.json."""
    torch.manual_seed(0)
    made, processor = IMAGE_NETWORKS[network]()
    made.config.update(changes)
    batch = processor(samples(), return_tensors="pt")
    with torch.inference_mode():
        measured(made, batch)
        spread_out(made, made(**batch).logits)
    return saved(folder, made, processor, "image-classification")


def measured(network: nn.Module, batch: Any) -> None:
    """Puts the network in eval mode, with the batch's own means in batch normalisation.

    A deep network with random weights otherwise returns the same for all images.
    """
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
        elif isinstance(layer, nn.Dropout):
            layer.p = 0.0
    network.train()
    network(**batch)
    network.eval()


def samples() -> list[Image.Image]:
    """Drawn images of several sizes and colours."""
    plates = [pictures.plate(*size) for size in [(320, 241), (97, 211), (64, 64), (70, 30), (640, 480)]]
    return [*plates, *(ImageOps.invert(plate) for plate in plates), Image.new("RGB", (80, 99), "blue")]


def spread_out(network: nn.Module, logits: torch.Tensor) -> None:
    """Scales the head so that each logit varies by SPREAD over the samples, about 0."""
    head = [layer for layer in network.modules() if isinstance(layer, nn.Linear)][-1]
    mean, deviation = logits.mean(0), logits.std(0)
    with torch.no_grad():
        head.weight.mul_((SPREAD / deviation)[:, None])
        head.bias.sub_(mean).mul_(SPREAD / deviation)


def saved(folder: Path, network: Any, processor: Any, task: str) -> Path:
    """The folder, then the network in safetensors and as ONNX, and what is beside it."""
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    main_export(str(folder), folder, task=task, do_validation=False)
    return folder
