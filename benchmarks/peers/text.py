"""Shared work of the other servers that classify texts: the class of each."""

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
        encodings = self.tokenizer.encode_batch(texts)
        inputs = {
            "input_ids": np.array([encoding.ids for encoding in encodings]),
            "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
        }
        scores = [best(self.labels, logits, 1)[0] for logits in self.session.run((), inputs)[0]]
        return [{"prediction": score["label"], "probability": score["probability"]} for score in scores]
