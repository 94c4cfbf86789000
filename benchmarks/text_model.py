"""Models of texts with random weights, with which servers are compared.

The classifier has DistilBERT-base's shape, the embedding model all-MiniLM-L6-v2's. They are made
without PyTorch and transformers: the graph as they export it, node by node, and a WordPiece vocabulary
of made-up words. `compare`, `limit` and a notebook use them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import BertWordPieceTokenizer, processors

FOLDER = Path("runs/benchmark-text-model")
EMBEDDING_FOLDER = Path("runs/benchmark-embedding-model")
LABELS = ("NEGATIVE", "POSITIVE")
VOCABULARY, POSITIONS, WIDTH, HEADS, LAYERS = 30_522, 512, 768, 12, 6
EMBEDDING_WIDTH = 384
MODULES = (
    ("models.Transformer", ""),
    ("models.Pooling", "1_Pooling"),
    ("models.Normalize", "2_Normalize"),
)
"""Modules of sentence-transformers in an embedding model, and their folders."""

LENGTHS = (5, 60)
"""Fewest and most tokens of a text, the two special ones among them."""

TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "model_max_length": 512}
SYLLABLES = [a + b + c for a in "bdfklmnprst" for b in "aeiou" for c in ("", "n", "s")]
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]
"""27,225 words; each is a token."""


def ensure(folder: Path = FOLDER) -> Path:
    """Returns the folder, and makes the model first where it holds none: 270 MB."""
    if not (folder / "model.onnx").exists():
        make(folder)
    return folder


def ensure_embedding(folder: Path = EMBEDDING_FOLDER) -> Path:
    """Returns the folder, and makes the embedding model first where it holds none: 90 MB."""
    if not (folder / "modules.json").exists():
        make(folder, EMBEDDING_WIDTH, embeds=True)
        modules = [
            {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.{kind}"}
            for idx, (kind, path) in enumerate(MODULES)
        ]
        pooling = {"word_embedding_dimension": EMBEDDING_WIDTH, "pooling_mode_mean_tokens": True}
        for _, path in MODULES[1:]:
            (folder / path).mkdir(exist_ok=True)
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
        (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def make(folder: Path, width: int = WIDTH, layers: int = LAYERS, *, embeds: bool = False) -> None:
    """Writes an export: `config.json`, `tokenizer.json`, `model.onnx`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DistilBertModel" if embeds else "DistilBertForSequenceClassification"],
        "model_type": "distilbert",
        "dim": width,
        "hidden_dim": 4 * width,
        "n_heads": HEADS,
        "n_layers": layers,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "id2label": dict(enumerate(LABELS)),
        "label2id": {name: index for index, name in enumerate(LABELS)},
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator([" ".join(WORDS)], VOCABULARY, min_frequency=1, show_progress=False)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    graph = Graph(width)
    onnx.save(graph.encoder(layers) if embeds else graph.classifier(layers), folder / "model.onnx")


def texts(count: int, seed: int = 0) -> list[str]:
    """Returns texts whose numbers of tokens are spread evenly over LENGTHS."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(LENGTHS[0] - 2, LENGTHS[1] - 2, count, endpoint=True)
    return [" ".join(rng.choice(WORDS, length)) for length in lengths]


class Graph:
    """Graph of DistilBERT with a classifier; its methods add nodes and return an output's name."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def classifier(self, layers: int) -> onnx.ModelProto:
        """Returns the model: int64 `input_ids` and `attention_mask` [N, T] in, `logits` [N, 2] out."""
        width, hidden = self._width, self._hidden(layers)
        first = self._op("Gather", hidden, self._constant(np.int64(0)), axis=1)
        pooled = self._op("Relu", self._linear(first, width, width))
        return self._model(self._linear(pooled, width, len(LABELS)), "logits", len(LABELS))

    def encoder(self, layers: int) -> onnx.ModelProto:
        """Returns the model: the same in, `last_hidden_state` [N, T, width] out."""
        return self._model(self._hidden(layers), "last_hidden_state", "tokens", self._width)

    def _hidden(self, layers: int) -> str:
        """Adds the layers."""
        width = self._width
        length = self._op("Gather", self._op("Shape", "input_ids"), self._constant(np.int64(1)))
        places = self._op("Range", self._constant(np.int64(0)), length, self._constant(np.int64(1)))
        tokens = self._op("Gather", self._random(VOCABULARY, width), "input_ids")
        positions = self._op("Gather", self._random(POSITIONS, width), places)
        hidden = self._norm(self._op("Add", tokens, positions))
        absent = self._op("Equal", "attention_mask", self._constant(np.int64(0)))
        absent = self._op("Unsqueeze", absent, self._constant(np.array([1, 2])))
        for _ in range(layers):
            hidden = self._norm(self._op("Add", self._attention(hidden, absent), hidden))
            inner = self._op("Gelu", self._linear(hidden, width, 4 * width))
            hidden = self._norm(self._op("Add", self._linear(inner, 4 * width, width), hidden))
        return hidden

    def _model(self, source: str, name: str, *shape: str | int) -> onnx.ModelProto:
        """Returns the model with this output."""
        self._nodes.append(helper.make_node("Identity", [source], [name]))
        graph = helper.make_graph(
            self._nodes,
            "distilbert",
            [
                helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
                for name in ("input_ids", "attention_mask")
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])],
            self._weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def _attention(self, hidden: str, absent: str) -> str:
        """Adds self-attention; `absent` [N, 1, 1, T] is true where there is no token."""
        orders = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)
        query, key, value = (self._heads(hidden, order) for order in orders)
        scale = np.float32((self._width / HEADS) ** -0.5)
        scores = self._op("MatMul", self._op("Mul", query, self._constant(scale)), key)
        lowest = self._constant(np.finfo(np.float32).min)
        shares = self._op("Softmax", self._op("Where", absent, lowest, scores), axis=-1)
        mixed = self._op("Transpose", self._op("MatMul", shares, value), perm=(0, 2, 1, 3))
        shape = self._constant(np.array([0, 0, self._width]))
        return self._linear(self._op("Reshape", mixed, shape), self._width, self._width)

    def _heads(self, hidden: str, order: tuple[int, ...]) -> str:
        """Adds a projection to [N, T, heads, width of a head], transposed."""
        shape = self._constant(np.array([0, 0, HEADS, self._width // HEADS]))
        return self._op(
            "Transpose",
            self._op("Reshape", self._linear(hidden, self._width, self._width), shape),
            perm=order,
        )

    def _linear(self, source: str, inputs: int, outputs: int) -> str:
        """Adds a layer [..., inputs] to [..., outputs]."""
        product = self._op("MatMul", source, self._random(inputs, outputs))
        return self._op("Add", product, self._constant(np.zeros(outputs, np.float32)))

    def _norm(self, source: str) -> str:
        ones, zeros = (self._constant(make(self._width, np.float32)) for make in (np.ones, np.zeros))
        return self._op("LayerNormalization", source, ones, zeros, epsilon=1e-12)

    def _random(self, *shape: int) -> str:
        return self._constant(self._rng.normal(0, 0.02, shape).astype(np.float32))

    def _constant(self, value: NDArray[np.generic] | np.generic) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; returns the name of its output."""
        name = f"{operator}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name
