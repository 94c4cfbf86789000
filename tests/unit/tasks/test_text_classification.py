"""`smallplates.tasks.text_classification`: from exports of text classifiers to answers."""

import contextlib
import json
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from onnx import NodeProto, TensorProto
from tokenizers import Tokenizer, processors
from tokenizers.normalizers import BertNormalizer

from fastapi_onnx.backend import OnnxBackend
from smallplates.errors import ConfigurationError, InternalError, InvalidTextError, TextTooLongError
from smallplates.models.description import TextPipeline
from smallplates.models.folder import Model
from smallplates.models.huggingface import BEHIND_PADDING
from smallplates.models.tensors import Signature
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from smallplates.tasks.text import TENSOR, TOKENS
from smallplates.worker.warmup import check_logits
from tests import exports, graphs
from tests.served_task import ServedTask, answers, loaded

WORD_PIECE = exports.word_piece()
NO_MOST: dict[str, Any] = {"max_position_embeddings": None}
NO_PAD: dict[str, Any] = {"pad_token_id": None}
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"


def saved(folder: Path, tokenizer: Tokenizer | None = None, **changes: Any) -> Path:
    return exports.saved(folder / "made", tokenizer or exports.word_piece(), changes)


def planned(folder: Path) -> tuple[Signature, ...]:
    return ServedTask(folder).signatures


def tokens(task: Any, **fields: str) -> list[list[int]]:
    ((*arrays,),) = task.preprocess(fields).items
    return [array.tolist() for array in arrays]


@pytest.mark.parametrize(
    ("names", "kind", "pads"),
    [
        ((IDS, MASK), TensorProto.INT64, True),
        ((MASK, IDS, TYPES), TensorProto.INT64, True),
        ((IDS, TYPES, MASK), TensorProto.INT32, True),
        ((IDS,), TensorProto.INT32, False),
    ],
)
def test_inputs_are_as_the_graph_declares(
    tmp_path: Path, names: tuple[str, ...], kind: int, pads: bool
) -> None:
    folder = exports.saved(tmp_path / "made", exports.word_piece(), {}, names=names, kind=kind)
    signatures = planned(folder)
    assert [signature.name for signature in signatures] == ["tokens", "tensor"]
    assert signatures[TOKENS].pads == pads
    assert signatures[TOKENS].limits == {"tokens": 64}
    assert signatures[TENSOR].limits == {"sequence_length": 64}
    for signature in signatures:
        assert [spec.name for spec in signature.inputs] == list(names)
        assert {spec.dtype for spec in signature.inputs} == {
            "int64" if kind == TensorProto.INT64 else "int32"
        }
        assert [spec.example for spec in signature.inputs] == [int(name != TYPES) for name in names]
    ((*arrays,),) = loaded(folder).preprocess({"text": "warm", "text_pair": "awful"}).items
    assert [array.dtype for array in arrays] == [spec.dtype for spec in signatures[TOKENS].inputs]
    (top,) = answers(folder, [{"text": "warm", "text_pair": "awful"}], 3)
    if TYPES in names:  # the second text counts ten times
        assert [candidate["label"] for candidate in top] == ["NEGATIVE", "POSITIVE", "NEUTRAL"]
    assert sum(candidate["probability"] for candidate in top) == pytest.approx(1)


def test_labels_that_do_not_exclude_each_other(tmp_path: Path) -> None:
    folder = saved(tmp_path, problem_type="multi_label_classification")
    (top,) = answers(folder, [{"text": "warm bread"}], 3)
    by_label = {candidate["label"]: candidate["probability"] for candidate in top}
    assert by_label["POSITIVE"] == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-5)
    assert by_label["NEUTRAL"] == pytest.approx(1 / (1 + np.exp(-3)), abs=1e-5)
    assert by_label["NEGATIVE"] == pytest.approx(0.5)


def test_one_label_is_a_sigmoid(tmp_path: Path) -> None:
    folder = saved(tmp_path, id2label={"0": "toxic"})
    (top,) = answers(folder, [{"text": "awful"}], 3)
    assert top == [{"label": "toxic", "probability": pytest.approx(1 / (1 + np.exp(-4))), "index": 0}]


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({}, None, {"max_tokens": 64, "pad_token_id": 0}),
        ({}, {"model_max_length": 32}, {"max_tokens": 32}),
        ({}, {"model_max_length": 10**30}, {"max_tokens": 64}),
        ({}, {"truncation_side": "left"}, {"truncation_side": "left"}),
        (NO_MOST, None, {"max_tokens": 512}),
        ({"max_position_embeddings": -1}, None, {"max_tokens": 512}),
        ({**NO_MOST, "n_positions": 1024}, None, {"max_tokens": 1024}),
        ({**NO_MOST, "n_positions": 512}, {"model_max_length": 2048}, {"max_tokens": 2048}),
        ({"model_type": "roberta", "pad_token_id": 1}, None, {"max_tokens": 62, "pad_token_id": 1}),
        ({"model_type": "roberta", "pad_token_id": 0}, None, {"max_tokens": 63}),
        ({"model_type": "roberta", **NO_MOST, **NO_PAD}, None, {"max_tokens": 510, **NO_PAD}),
        *(
            ({"model_type": kind, **NO_PAD}, None, {"max_tokens": 62, **NO_PAD})
            for kind in sorted(BEHIND_PADDING)
        ),
        (NO_PAD, {}, NO_PAD),
        (NO_PAD, {"pad_token": {"content": "[SEP]"}}, {"pad_token_id": 3}),
        (NO_PAD, {"pad_token": "[CLS]"}, {"pad_token_id": 2}),
    ],
)
def test_limits_and_padding_are_those_of_the_files(
    tmp_path: Path,
    config: dict[str, Any],
    tokenizer_config: dict[str, Any] | None,
    expected: dict[str, Any],
) -> None:
    folder = saved(tmp_path, **config)
    if tokenizer_config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    pipeline = Model.read(folder).description.text_pipeline
    assert pipeline == TextPipeline(**{**pipeline.model_dump(), **expected})


BERT = {"tokenizer_class": "BertTokenizer"}
GENERAL = {"tokenizer_class": "PreTrainedTokenizerFast"}
CASED, NO_SPACE = {**BERT, "do_lower_case": False}, {"add_prefix_space": False}


@pytest.mark.parametrize(
    ("tokenizer", "text", "other", "options"),
    [
        (exports.word_piece, "WARM", "warm", CASED),
        (exports.word_piece, "WARM", "warm", {"do_lower_case": False}),
        (exports.word_piece, "wärm", "warm", {**BERT, "strip_accents": False}),
        (exports.word_piece, "今天", "今 天", {**BERT, "tokenize_chinese_chars": False}),
        (exports.byte_level, "warm", " warm", NO_SPACE),
        (exports.byte_level, "warm", " warm", {"tokenizer_class": "RobertaTokenizer"}),
        (exports.byte_level, "warm", " warm", {}),
    ],
)
def test_steps_of_the_tokeniser_are_those_of_its_configuration(
    tmp_path: Path, tokenizer: Any, text: str, other: str, options: dict[str, Any]
) -> None:
    folder = exports.saved(tmp_path / "made", tokenizer(), {})
    for stated in (GENERAL, options):
        (folder / "tokenizer_config.json").write_text(json.dumps(stated))
        task = loaded(folder)
        differ = tokens(task, text=text)[0] != tokens(task, text=other)[0]
        assert differ == (stated is options)


@pytest.mark.parametrize(
    ("lower", "strip", "options", "is_same"),
    [
        (False, False, BERT, True),
        (True, False, {**BERT, "strip_accents": None}, True),
        (True, True, CASED, False),
        (False, False, {**GENERAL, "do_lower_case": True}, False),
        (False, False, {}, True),
    ],
)
def test_a_class_of_bert_has_defaults_for_what_its_configuration_leaves_out(
    tmp_path: Path, lower: bool, strip: bool, options: dict[str, Any], is_same: bool
) -> None:
    tokenizer = exports.word_piece()
    tokenizer.normalizer = BertNormalizer(lowercase=lower, strip_accents=strip)
    folder = exports.saved(tmp_path / "made", tokenizer, {})
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    task = loaded(folder)
    text = "wärm" if strip or lower else "WÄRM"
    assert (tokens(task, text=text)[0] == tokens(task, text="warm")[0]) == is_same


@pytest.mark.parametrize(
    "options",
    [
        {"added_tokens_decoder": {"900": {"content": "<dish>", "special": True}}},
        {"additional_special_tokens": ["<dish>", "[SEP]"]},
        {"extra_special_tokens": {"dish_token": "<dish>"}},
        {"extra_special_tokens": [{"content": "<dish>"}]},
        {"mask_token": "<dish>"},
    ],
)
def test_tokens_that_only_its_configuration_has_are_added(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = saved(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    size = WORD_PIECE.get_vocab_size()
    assert tokens(loaded(folder), text="<dish>soup")[0] == [2, size, WORD_PIECE.token_to_id("soup"), 3]


@pytest.mark.parametrize("is_newer", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("special_tokens_map.json", {"mask_token": "<dish>"}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "<dish>"}]}),
        ("added_tokens.json", {"<dish>": 900, "[SEP]": 3}),
    ],
)
def test_older_files_have_tokens_if_the_configuration_has_none(
    tmp_path: Path, name: str, content: dict[str, Any], is_newer: bool
) -> None:
    folder = saved(tmp_path)
    (folder / name).write_text(json.dumps(content))
    newer: dict[str, Any] = {"added_tokens_decoder": {}} if is_newer else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[PAD]", **newer}))
    size = WORD_PIECE.get_vocab_size()
    assert (size in tokens(loaded(folder), text="<dish>soup")[0]) != is_newer


def test_an_added_token_is_text_unless_it_is_special(tmp_path: Path) -> None:
    folder, size = saved(tmp_path), WORD_PIECE.get_vocab_size()
    (folder / "added_tokens.json").write_text('{"<dish>": 900, "<salt>": 901}')
    (folder / "special_tokens_map.json").write_text('{"additional_special_tokens": ["<salt>"]}')
    task = loaded(folder)
    assert size in tokens(task, text="<DISH> soup")[0]  # normalised: in lower case
    assert size + 1 in tokens(task, text="<salt> soup")[0]
    assert size + 1 not in tokens(task, text="<SALT> soup")[0]


def test_rembert_has_special_tokens_around_a_text(tmp_path: Path) -> None:
    tokenizer, names = exports.word_piece(), ("input_ids", "token_type_ids")
    folder = exports.saved(tmp_path / "made", tokenizer, {}, names=names)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1")
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(tokens(loaded(folder), text="soup")[0]) == 1
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RemBertTokenizer"}')
    ids = tokens(loaded(folder), text="soup", text_pair="warm")
    assert ids == [WORD_PIECE.encode("soup", "warm").ids, WORD_PIECE.encode("soup", "warm").type_ids]


def test_special_tokens_of_a_text_are_text_if_the_configuration_says_so(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    for options, count in (({}, 3), ({"split_special_tokens": True}, 7)):
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
        assert len(tokens(loaded(folder), text="[SEP]")[0]) == count


def test_the_end_that_is_cut_may_be_only_in_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = exports.word_piece()
    tokenizer.enable_truncation(5, direction="left")
    folder = saved(tmp_path)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert Model.read(folder).description.text_pipeline.truncation_side == "left"
    (folder / "tokenizer_config.json").write_text('{"truncation_side": "right"}')
    assert Model.read(folder).description.text_pipeline.truncation_side == "right"


def test_a_class_of_other_tokens_than_bert_keeps_its_normalizer(tmp_path: Path) -> None:
    tokenizer = exports.byte_level()  # BPE with BERT's normalizer, as HerBERT has them
    tokenizer.normalizer = BertNormalizer(lowercase=False, strip_accents=False)
    folder = exports.saved(tmp_path / "made", tokenizer, {})
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "HerbertTokenizer"}')
    task = loaded(folder)
    assert tokens(task, text="WARM")[0] != tokens(task, text="warm")[0]


def test_a_graph_that_reads_the_last_place_is_not_padded(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    weights = np.random.default_rng(0).normal(size=(WORD_PIECE.get_vocab_size(), 3))
    graphs.saved(graphs.last_token_classifier(weights.astype(np.float32)), folder)
    plan = planner("fastapi_onnx.backend:OnnxBackend", Settings())(Model.read(folder), Event())
    for signature in plan.signatures:
        assert (signature.pads, signature.batch_size) == (False, 0)
        assert "texts of the same length" in signature.batch_note


def test_a_text_that_the_graph_refuses_is_the_clients_error(tmp_path: Path) -> None:
    """Graphs that were traced may refuse some lengths, such as short ones."""
    assert all(signature.failure_is_client_error for signature in planned(saved(tmp_path)))


@pytest.mark.parametrize(("positions", "tokens"), [(62, 62), (5, 5), (70, 64)])
def test_the_longest_text_is_one_that_the_graph_computes(
    tmp_path: Path, positions: int, tokens: int
) -> None:
    folder = saved(tmp_path)  # its files state 64 tokens
    graphs.saved(graphs.last_token_classifier(exports.embeddings(WORD_PIECE), positions), folder)
    signatures = planned(folder)
    assert signatures[TOKENS].limits == {"tokens": tokens}
    assert signatures[TENSOR].limits == {"sequence_length": tokens}
    assert loaded(folder).limits["tokens"] == tokens
    with pytest.raises(TextTooLongError, match=f"at most {tokens} are accepted"):
        loaded(folder).preprocess({"text": "warm " * (tokens - 1)})


SIGMOID = [
    graphs.node("Neg", "z", "minus"),
    graphs.node("Exp", "minus", "exponential"),
    graphs.node("Add", "exponential one", "sum"),
]
SHOWN = {
    "softmax": [graphs.node("Softmax", "z", "logits")],
    "clip": [graphs.node("Sigmoid", "z", "p"), graphs.node("Clip", "p low high", "logits")],
    "parts": [*SIGMOID, graphs.node("Div", "one sum", "logits")],
    "reciprocal": [*SIGMOID, graphs.node("Reciprocal", "sum", "logits")],
}
LOGITS = {
    "logits": [graphs.node("Identity", "z", "logits")],
    "clipped": [graphs.node("Clip", "z minus_nine nine", "logits")],
    "log": [graphs.node("LogSoftmax", "z", "logits")],
    "scaled": [graphs.node("Exp", "half", "scale"), graphs.node("Div", "z scale", "logits")],
    "cosine": [graphs.node("Tanh", "z", "logits")],
}
PARTS = [
    graphs.node("Exp", "z", "exponential"),
    graphs.node("ReduceSum", "exponential axis", "sum"),
    graphs.node("Div", "exponential sum", "logits"),
]


def ending_in(nodes: list[NodeProto], folder: Path, name: str = "logits") -> Path:
    """An export whose graph computes these from logits `z`; its output has this name."""
    made = graphs.text_classifier(exports.embeddings(WORD_PIECE))
    made.graph.node[-1].output[0] = "z"
    made.graph.node.extend([*nodes, graphs.node("Identity", "logits", "probabilities")])
    made.graph.output[0].name = name
    floats = {"one": 1, "half": 0.5, "low": 1e-7, "high": 0.9, "nine": 9, "minus_nine": -9}
    made.graph.initializer.extend(
        [
            *graphs.tensors(**{key: np.float32(number) for key, number in floats.items()}),
            *graphs.tensors(axis=[1]),
        ]
    )
    return graphs.saved(made, saved(folder))


@pytest.mark.parametrize("name", ["logits", "probabilities"])
@pytest.mark.parametrize("end", SHOWN)
def test_a_graph_that_returns_probabilities_is_refused(tmp_path: Path, end: str, name: str) -> None:
    folder = ending_in(SHOWN[end], tmp_path, name)
    with pytest.raises(ConfigurationError, match=f"{name} has probabilities"):
        planned(folder)


@pytest.mark.parametrize(("end", "is_refused"), [("parts", True), *((end, False) for end in LOGITS)])
def test_numbers_show_whether_they_are_probabilities(tmp_path: Path, end: str, is_refused: bool) -> None:
    served = ServedTask(ending_in({**LOGITS, "parts": PARTS}[end], tmp_path))
    served.backend.load(served.model, served.settings)
    refuses = pytest.raises(ConfigurationError, match="returns probabilities")
    with refuses if is_refused else contextlib.nullcontext():
        check_logits(served.backend, served.model, served.signatures[TOKENS])


def test_a_graph_in_int8_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (folder / "model.onnx").rename(folder / "model_quantized.onnx")
    assert len(planned(folder)) == 2
    chosen = Settings(device="cpu", precision="int8")
    assert OnnxBackend().load(Model.read(folder), chosen).precision == "int8"


# what clients send


def test_a_text_of_too_many_tokens_is_refused_or_truncated(tmp_path: Path) -> None:
    folder = saved(tmp_path, max_position_embeddings=8)
    long, fits = "warm " * 7, "warm " * 6
    with pytest.raises(TextTooLongError, match="the text has 9 tokens; at most 8 are accepted"):
        loaded(folder).preprocess({"text": long})
    assert len(tokens(loaded(folder), text=fits)[0]) == 8
    truncated = loaded(folder, long_text="truncate")
    assert tokens(truncated, text=long) == tokens(truncated, text=fits)
    pair = tokens(truncated, text="warm " * 50, text_pair="bread")[0]
    assert len(pair) == 8
    assert pair[-2:] == exports.word_piece().encode("bread").ids[1:]
    (folder / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    from_left = loaded(folder, long_text="truncate")
    assert tokens(from_left, text="awful " + fits) == tokens(truncated, text=fits)


def test_a_text_of_which_nothing_is_left(tmp_path: Path) -> None:
    tokenizer = exports.word_piece()
    tokenizer.post_processor = None  # no special tokens
    with pytest.raises(InvalidTextError, match="no characters that the model knows"):
        loaded(saved(tmp_path, tokenizer)).preprocess({"text": "\0"})


def test_a_tokeniser_that_panics_fails_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicError(BaseException):
        """As Rust's panics are: no Exception."""

    task, tokenizer = loaded(saved(tmp_path)), Mock()
    tokenizer.encode_batch_fast.side_effect = PanicError("byte index 1 is not a char boundary")
    monkeypatch.setattr(task, "quick_tokenizer", tokenizer)
    with pytest.raises(InternalError, match="the tokeniser failed: byte index 1"):
        task.preprocess({"text": "warm"})
