"""Shared work of the other servers of texts: the class, or the vector, of each."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.peers.common import GRAPHS, precision_of_peer, session
from smallplates.models.folder import Model
from smallplates.models.scores import best


class ClassifyTexts:
    """Model instance of one thread; the texts of a batch are padded to the longest."""

    field = "text"

    def __init__(self, model_dir: str, precision: str | None = None) -> None:
        """Loads the model; `precision` is fp32, int8 or bf16, None: as `compare` sets it."""
        precision = precision or precision_of_peer()
        model = Model.read(Path(model_dir))
        self.labels = model.labels
        self.tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
        self.session = session(model.file(GRAPHS[precision]), precision)
        self.tokenizer.enable_padding(pad_to_multiple_of=self.session.length_step)

    def body(self, body: bytes) -> dict[str, Any]:
        """Answers the body `{"text": "..."}`."""
        return self.text(json.loads(body)["text"])

    def text(self, text: str) -> dict[str, Any]:
        """Answers one text."""
        return self([text])[0]

    def __call__(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Answers one batch."""
        scores = [best(self.labels, logits, 1)[0] for logits in self.infer(texts)[0]]
        return [{"prediction": score["label"], "probability": score["probability"]} for score in scores]

    def infer(self, texts: Sequence[str]) -> tuple[Any, Any]:
        """Returns the network's output [texts, ...] and the attention mask [texts, tokens]."""
        encodings = self.tokenizer.encode_batch(texts)
        mask = np.array([encoding.attention_mask for encoding in encodings])
        inputs = {
            "input_ids": np.array([encoding.ids for encoding in encodings]),
            "attention_mask": mask,
        }
        return self.session.run((), inputs)[0], mask


class EmbedTexts(ClassifyTexts):
    """The same for vectors: the mean of the tokens' vectors, with the length 1."""

    def __call__(self, texts: Sequence[str]) -> Any:
        """Returns the vectors of one batch, float32 [texts, width]."""
        states, mask = self.infer(texts)
        sums = np.einsum("ntw,nt->nw", states, mask.astype(np.float32))
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)
