"""Static embeddings: a text's vector is the mean of its tokens' vectors, which are looked up in a table.

Reads what Model2Vec writes, and sentence-transformers for its module StaticEmbedding; for
`cli/export.py`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from pydantic import TypeAdapter
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from smallplates.errors import library_errors
from smallplates.models.description import EmbeddingPipeline, ModelDescription, TextPipeline
from smallplates.models.huggingface import CONFIG, TOKENIZER, File, configuration_errors, read
from smallplates.models.sentence_transformers import MODULES, TENSORS, Module, read_options
from smallplates.models.task_kinds import EMBEDDING

MODULE = "StaticEmbedding"
OF_MODEL2VEC = "embeddings"
"""Name of the table in Model2Vec's files; in those of sentence-transformers it is `embedding.weight`."""

NOTHING = -1
"""Stands for a token that no text has."""

UNLIMITED = 8192
"""Maximum number of tokens if the model has none."""

GRAPH = """
<ir_version: 8, opset_import: ["" : 13]>
static (int64[batch_size, sequence_length] input_ids, int64[batch_size, sequence_length] attention_mask)
    => (float[batch_size, {size}] sentence_embedding)
{{
    is_left_out = Equal (input_ids, left_out)
    is_counted = Not (is_left_out)
    counted = Cast <to = 7> (is_counted)
    mask = Mul (attention_mask, counted)
    weights = Cast <to = 1> (mask)
    row = Unsqueeze (weights, axis)
    vectors = Gather (table, input_ids)
    sum = MatMul (row, vectors)
    flat = Squeeze (sum, axis)
    tokens = ReduceSum (weights, axis)
    divisor = Max (tokens, one)
    sentence_embedding = Div (flat, divisor)
}}
"""
"""Mean over the tokens without `left_out`; zeros for a text without tokens."""


class Config(File):
    """Content of Model2Vec's `config.json`."""

    normalize: bool = False
    max_length: int | None = 512
    """Maximum number of tokens; None: unlimited. Older files do not have it."""


def write(folder: Path, out: Path, name: str, max_tokens: int | None) -> ModelDescription:
    """Writes the graph and the tokenizer; returns the description.

    `max_tokens` replaces the model's own limit. Raises ConfigurationError and OSError.
    """
    place, normalizes = static_module(folder)
    with library_errors(f"{place} cannot be read as static embeddings"):
        tensors = load_file(place / TENSORS)
        tokenizer = Tokenizer.from_file(str(place / TOKENIZER))
        table = table_of(tensors)
        if (tokens := max(tokenizer.get_vocab().values(), default=0) + 1) > len(table):
            raise ValueError(f"the tokenizer has {tokens} tokens, the table only {len(table)}")
    limit = tokenizer.truncation["max_length"] if tokenizer.truncation else None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    content = json.loads(tokenizer.to_str()) | {"post_processor": None}  # neither adds special tokens
    left_out = NOTHING
    if OF_MODEL2VEC in tensors:
        left_out = unknown_token(tokenizer, content["model"])
        if (folder / CONFIG).is_file():
            config = read(folder / CONFIG, Config)
            normalizes, limit = normalizes or config.normalize, config.max_length
    options = read_options(folder)
    description = ModelDescription(
        name=name,
        version="1",
        task=EMBEDDING,
        text=TextPipeline(max_tokens=max_tokens or limit or UNLIMITED, pad_token_id=0),
        embedding=EmbeddingPipeline(
            normalize=normalizes,
            dimensions=options.truncate_dim,
            prompts=options.prompts,
            default_prompt_name=options.default_prompt_name,
        ),
    )
    (out / "1").mkdir(parents=True, exist_ok=True)
    (out / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    onnx.save(graph_of(table, left_out), out / "1" / "model.onnx")
    return description


def static_module(folder: Path) -> tuple[Path, bool]:
    """Returns the folder of the table and the tokenizer, and whether vectors get the length 1.

    Raises ConfigurationError.
    """
    if not (path := folder / MODULES).is_file():
        return folder, False
    with configuration_errors(path):
        first, *others = TypeAdapter(list[Module]).validate_json(path.read_bytes())
        kinds = [first.kind, *(module.kind for module in others)]
        if kinds not in ([MODULE], [MODULE, "Normalize"]):
            raise ValueError(
                f"its modules are {', '.join(kinds)}; supported are {MODULE}, and Normalize"
            )
    return folder / first.path, bool(others)


def table_of(tensors: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    """Returns a vector for each token, float32 [tokens, size]. Raises ValueError.

    Several tokens may share a vector, then each has a factor of its own.
    """
    stored = tensors.get(OF_MODEL2VEC, tensors.get("embedding.weight"))
    if stored is None or stored.ndim != 2:
        raise ValueError(f"{TENSORS} has no table of vectors; it has {', '.join(sorted(tensors))}")
    table = stored.astype(np.float32)
    if (mapping := tensors.get("mapping")) is not None:
        table = table[mapping.astype(np.int64)]
    if (weights := tensors.get("weights")) is not None:
        table *= weights.astype(np.float32)[:, None]
    return table


def unknown_token(tokenizer: Tokenizer, model: dict[str, Any]) -> int:
    """Returns the token of unknown words, which Model2Vec leaves out; NOTHING if there is none.

    `model` is that part of the tokenizer's JSON.
    """
    tokens = (tokenizer.token_to_id(model.get("unk_token") or ""), model.get("unk_id"))
    return next((token for token in tokens if token is not None), NOTHING)


def graph_of(table: NDArray[np.float32], left_out: int) -> onnx.ModelProto:
    """Returns the graph from tokens to vectors."""
    graph = parser.parse_model(GRAPH.format(size=table.shape[1]))
    constants = {
        "table": table,
        "left_out": np.array([left_out]),
        "axis": np.array([1]),
        "one": np.array([1], np.float32),
    }
    graph.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    return graph
