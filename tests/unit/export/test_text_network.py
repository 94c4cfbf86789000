"""`smallplates.export.text_network`: graphs of transformers' networks for texts."""

from pathlib import Path

import onnx
import pytest
import transformers

from smallplates.export import text_network
from smallplates.models.folder import Model
from tests import exports

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def test_an_attention_that_pytorch_cannot_export(tmp_path: Path) -> None:
    tokenizer = exports.word_piece()
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=tokenizer.get_vocab_size(), pad_token_id=0, **sizes)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path)
    special = {"tokenizer_object": tokenizer, "pad_token": "[PAD]"}
    transformers.PreTrainedTokenizerFast(**special).save_pretrained(tmp_path)
    text_network.write(Model.read(tmp_path), tmp_path / "model.onnx")  # compares the two
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [output.name for output in graph.output] == ["sentence_embedding"]
