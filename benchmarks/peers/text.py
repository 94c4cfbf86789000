"""Shared work of the other servers that classify texts: the class of each, from ONNX Runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from fastapi_onnx.network import FP32, INT8
from serving.model import Model
from serving.scores import best


class ClassifyTexts:
    """Model instance of one thread; the texts of a batch are padded to the longest."""

    def __init__(self, model_dir: str, precision: str = "fp32") -> None:
        """Loads the model; `precision` is fp32 or int8."""
        model = Model.read(Path(model_dir))
        self.labels = model.labels
        self.tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
        self.tokenizer.enable_padding()
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(
            model.file(INT8 if precision == "int8" else FP32),
            options,
            providers=["CPUExecutionProvider"],
        )

    def __call__(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Answers one batch."""
        encodings = self.tokenizer.encode_batch(texts)
        inputs = {
            "input_ids": np.array([encoding.ids for encoding in encodings]),
            "attention_mask": np.array([encoding.attention_mask for encoding in encodings]),
        }
        scores = [best(self.labels, logits, 1)[0] for logits in self.session.run(None, inputs)[0]]
        return [{"prediction": score.label, "probability": score.probability} for score in scores]
