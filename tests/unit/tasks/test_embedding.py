"""`smallplates.tasks.embedding`: from exports of encoders to vectors, in the ONNX backend."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from smallplates.errors import ConfigurationError, InvalidRequestError, RequestError, TextTooLongError
from smallplates.models.folder import Model
from smallplates.tasks.base import Prepared
from smallplates.tasks.text import CHARACTERS_PER_TOKEN
from tests import exports, graphs
from tests.served_task import answers, loaded

WORD_PIECE = exports.word_piece()
STATES = exports.states(WORD_PIECE)
MEAN = ("Pooling", {"pooling_mode_mean_tokens": True})
LINEAR: dict[str, Any] = {"in_features": 4, "out_features": 3}
OPTIONS = "config_sentence_transformers.json"
NORMALIZE: tuple[str, dict[str, Any]] = ("Normalize", {})
TEXTS = ["warm bread", "an awful soup on a cold evening with nobody there", "table"]


def saved(folder: Path, *steps: tuple[str, dict[str, Any]], **changes: Any) -> Path:
    made = exports.encoded(folder / "made", exports.word_piece(), changes)
    return exports.modules(made, *steps) if steps else made


def states_of(text: str) -> NDArray[np.float32]:
    """The tokens' states of a text, [tokens, 4]."""
    ids = WORD_PIECE.encode(text).ids
    return STATES[ids] * np.arange(1, len(ids) + 1, dtype=np.float32)[:, None]


def vectors_of(folder: Path, texts: Sequence[str], **fields: Any) -> NDArray[np.float32]:
    found = answers(folder, [{"text": text, **fields} for text in texts])
    return np.array([candidate["embedding"] for (candidate,) in found])


POOLED = {
    "cls_token": lambda states: states[0],
    "max_tokens": lambda states: states.max(0),
    "mean_tokens": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / np.sqrt(len(states)),
    "weightedmean_tokens": lambda states: (
        np.arange(1, len(states) + 1) @ states / sum(range(len(states) + 1))
    ),
    "lasttoken": lambda states: states[-1],
}


@pytest.mark.parametrize("flag", POOLED)
@pytest.mark.parametrize("opset", [11, 18])
def test_texts_of_several_lengths_are_pooled(tmp_path: Path, flag: str, opset: int) -> None:
    folder = exports.encoded(tmp_path / "made", exports.word_piece(), {}, opset=opset)
    exports.modules(folder, ("Pooling", {"word_embedding_dimension": 4, f"pooling_mode_{flag}": True}))
    expected = [POOLED[flag](states_of(text)) for text in TEXTS]
    assert vectors_of(folder, TEXTS) == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize("mode", ["cls", ["cls"]])
def test_later_versions_name_the_pooling(tmp_path: Path, mode: Any) -> None:
    folder = saved(tmp_path, ("Pooling", {"embedding_dimension": 4, "pooling_mode": mode}))
    assert loaded(folder).pooling == "cls"


@pytest.mark.parametrize(
    ("config", "poolings"),
    [
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            ["cls_token", "mean_tokens"],
        ),
        ({"pooling_mode": ["mean", "cls"]}, ["mean_tokens", "cls_token"]),
    ],
)
def test_several_poolings_follow_each_other(
    tmp_path: Path, config: dict[str, Any], poolings: list[str]
) -> None:
    """In the order of sentence-transformers, unless the file has one."""
    folder = exports.encoded(tmp_path / "made", exports.word_piece(), {})
    exports.modules(folder, ("Pooling", config))
    expected = [np.concatenate([POOLED[each](states_of(text)) for each in poolings]) for text in TEXTS]
    assert vectors_of(folder, TEXTS) == pytest.approx(np.array(expected), abs=1e-5)


def test_a_graph_without_a_mask_is_pooled(tmp_path: Path) -> None:
    folder = exports.encoded(tmp_path / "made", exports.word_piece(), {}, names=["input_ids"])
    (vector,) = vectors_of(folder, TEXTS[:1])
    assert vector == pytest.approx(states_of(TEXTS[0]).mean(0), abs=1e-5)


def test_an_encoder_alone_is_pooled_by_the_mean_and_says_so(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    pipeline = Model.read(folder).description.embedding_pipeline
    assert (pipeline.pooling, pipeline.normalize) == ("mean", False)
    assert "names a pooling" in pipeline.note
    expected = np.array([states_of(text).mean(0) for text in TEXTS])
    assert vectors_of(folder, TEXTS) == pytest.approx(expected, abs=1e-5)


def test_a_graph_with_vectors_is_served_as_it_is(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN)
    classifier = graphs.text_classifier(STATES)
    classifier.graph.node[-1].output[0] = classifier.graph.output[0].name = "sentence_embedding"
    graphs.saved(classifier, folder)
    expected = [STATES[WORD_PIECE.encode(text).ids].mean(0) for text in TEXTS]
    assert vectors_of(folder, TEXTS) == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("Identity", lambda x: x), ("Tanh", np.tanh), ("ReLU", lambda x: x.clip(0))],
)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_follow(tmp_path: Path, activation: str, function: Any, bias: bool) -> None:
    config = {"in_features": 4, "out_features": 3, "bias": bias}
    dense = ("Dense", {**config, "activation_function": f"torch.nn.modules.activation.{activation}"})
    folder = saved(tmp_path, MEAN, dense, NORMALIZE)
    random = np.random.default_rng(1)
    weight, shift = random.normal(size=(3, 4)).astype("f4"), random.normal(size=3).astype("f4")
    tensors = {"linear.weight": weight} | ({"linear.bias": shift} if bias else {})
    save_file(tensors, folder / "2_Dense" / "model.safetensors")
    means = np.array([states_of(text).mean(0) for text in TEXTS])
    expected = function(means @ weight.T + (shift if bias else 0))
    assert vectors_of(folder, TEXTS, normalize=False) == pytest.approx(expected, abs=1e-5)
    lengths = np.linalg.norm(expected, axis=1, keepdims=True).clip(1e-12)  # ReLU makes zeros of one
    assert vectors_of(folder, TEXTS) == pytest.approx(expected / lengths, abs=1e-5)
    assert loaded(folder).dimensions == 3


def test_vectors_are_cut_and_normalised_as_the_request_says(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN, NORMALIZE)
    means = np.array([states_of(text).mean(0) for text in TEXTS])
    cases: list[tuple[dict[str, Any], NDArray[np.float32]]] = [
        ({}, means / np.linalg.norm(means, axis=1, keepdims=True)),
        ({"normalize": False}, means),
        ({"dimensions": 2, "normalize": False}, means[:, :2]),
        ({"dimensions": 2}, means[:, :2] / np.linalg.norm(means[:, :2], axis=1, keepdims=True)),
    ]
    for fields, expected in cases:
        assert vectors_of(folder, TEXTS, **fields) == pytest.approx(expected, abs=1e-5)
    for dimensions in (0, -1, 5, 10**30):
        with pytest.raises(InvalidRequestError, match="dimensions must be from 1 to 4"):
            loaded(folder).preprocess({"text": "warm", "dimensions": dimensions})


def test_vectors_are_cut_as_the_folder_says(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN)
    means = np.array([states_of(text).mean(0) for text in TEXTS])
    (folder / OPTIONS).write_text('{"truncate_dim": 2}')
    assert vectors_of(folder, TEXTS) == pytest.approx(means[:, :2], abs=1e-5)
    assert vectors_of(folder, TEXTS, dimensions=3) == pytest.approx(means[:, :3], abs=1e-5)


def test_prompts_go_in_front(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN)
    prompts = {"prompts": {"query": "warm soup ", "document": ""}, "default_prompt_name": "query"}
    (folder / OPTIONS).write_text(json.dumps(prompts))
    task = loaded(folder)
    for fields, text in [
        ({}, "warm soup bread"),
        ({"prompt_name": "query"}, "warm soup bread"),
        ({"prompt_name": "document"}, "bread"),
    ]:
        ids = task.preprocess({"text": "bread", **fields}).items[0][0].tolist()
        assert ids == WORD_PIECE.encode(text).ids
    assert task.prompts == prompts["prompts"]
    with pytest.raises(
        InvalidRequestError, match="no prompt 'passage'; its prompts are: query, document"
    ):
        task.preprocess({"text": "bread", "prompt_name": "passage"})


@pytest.mark.parametrize(
    ("length", "config", "tokenizer_config", "expected"),
    [
        ({"max_seq_length": 32}, {}, {"model_max_length": 16}, 32),
        ({"max_seq_length": 100}, {}, {}, 64),
        ({"max_seq_length": 64}, {"model_type": "mpnet", "pad_token_id": None}, {}, 62),
        ({"max_seq_length": None}, {}, {"model_max_length": 16}, 16),
        (None, {}, {}, 64),
    ],
)
def test_the_longest_text(
    tmp_path: Path,
    length: dict[str, Any] | None,
    config: dict[str, Any],
    tokenizer_config: dict[str, Any],
    expected: int,
) -> None:
    folder = saved(tmp_path, MEAN, **config)
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(length))
    assert Model.read(folder).description.text_pipeline.max_tokens == expected


def test_what_the_tokenizer_file_cuts_and_pads_does_not_matter(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN)
    plain = vectors_of(folder, TEXTS)
    tokenizer = exports.word_piece()
    tokenizer.enable_padding(length=32)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert (vectors_of(folder, TEXTS) == plain).all()


def test_lower_case(tmp_path: Path) -> None:
    folder = exports.modules(exports.encoded(tmp_path / "made", exports.byte_level(), {}), MEAN)
    assert ids_of(loaded(folder), "BREAD") != ids_of(loaded(folder), "bread")
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert ids_of(loaded(folder), "BREAD <PAD>") == ids_of(loaded(folder), "bread <pad>")


def ids_of(task: Any, text: str, **fields: Any) -> list[int]:
    ids: list[int] = task.preprocess({"text": text, **fields}).items[0][0].tolist()
    return ids


@pytest.mark.parametrize("long_text", ["refuse", "truncate"])
def test_long_texts_are_cut_as_the_request_says(tmp_path: Path, long_text: str) -> None:
    task = loaded(saved(tmp_path, MEAN), long_text=long_text)
    text = "warm " * 50 + "bread " * 50
    tokenizer = exports.word_piece()
    for direction in ("left", "Right", "RIGHT"):
        tokenizer.enable_truncation(64, direction=direction.lower())
        fields = {"text": text, "truncate": True, "truncation_direction": direction}
        prepared = task.preprocess(fields)
        assert prepared.items[0][0].tolist() == tokenizer.encode(text).ids
        assert (prepared.truncated, prepared.tokens) == (True, 64)
    with pytest.raises(TextTooLongError, match="the text has 102 tokens; at most 64"):
        task.preprocess({"text": text, "truncate": False})
    if long_text == "truncate":
        tokenizer.enable_truncation(64)
        assert ids_of(task, text) == tokenizer.encode(text).ids
    else:
        with pytest.raises(TextTooLongError, match="the text has 102 tokens"):
            task.preprocess({"text": text})
    with pytest.raises(
        InvalidRequestError, match="truncation_direction must be left or right, not 'up'"
    ):
        task.preprocess({"text": "warm", "truncation_direction": "up"})


def test_far_too_long_texts_are_cut_before_they_are_tokenised(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path, MEAN))
    most = CHARACTERS_PER_TOKEN * task.max_tokens
    spaces = " " * (most - 4)
    for text, direction in ((f"warm{spaces}bread", "right"), (f"bread{spaces}warm", "left")):
        reading = task.read({"text": text, "truncate": True, "truncation_direction": direction})
        assert len(reading.texts["text"]) == most
        assert "bread" not in reading.texts["text"]
        prepared = task.preprocess({"text": text, "truncate": True, "truncation_direction": direction})
        assert (prepared.truncated, prepared.tokens) == (True, 3)


def test_many_texts_are_tokenised_together(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path, MEAN))
    requests = [{"text": text} for text in ("warm", "", "bread soup", "warm " * 99, "\0", "table")]
    results = task.preprocess_all(requests)
    for fields, result in zip(requests, results, strict=True):
        if isinstance(result, Prepared):
            alone = task.preprocess(fields)
            assert [array.tolist() for array in result.items[0]] == [a.tolist() for a in alone.items[0]]
            assert result.tokens == alone.tokens == len(alone.items[0][0])
        else:
            with pytest.raises(type(result), match=str(result)):
                task.preprocess(fields)
    assert [isinstance(result, RequestError) for result in results] == [
        False,
        True,
        False,
        True,
        True,
        False,
    ]


LENGTH = "sentence_bert_config.json"
OTHER_POOLING = {"pooling_mode_cls_token": True, "pooling_mode_attention": True}
GELU = {**LINEAR, "activation_function": "torch.nn.GELU"}
OWN_POOLING, OWN_NETWORK = (
    [{"path": "", "type": kind} for kind in kinds]
    for kinds in (
        ("sentence_transformers.models.Transformer", "own.Pooling"),
        ("own.Transformer", "sentence_transformers.models.Pooling"),
    )
)
PROMPT = {OPTIONS: {"prompts": {"query": "warm "}}}
WITHOUT_PROMPT = {"pooling_mode_mean_tokens": True, "include_prompt": False}


@pytest.mark.parametrize(
    ("steps", "files", "words"),
    [
        ([("Pooling", OTHER_POOLING)], {}, "pooling: "),
        ([MEAN, ("LayerNorm", {})], {}, "modules are Transformer, Pooling, LayerNorm; supported are"),
        ([MEAN, NORMALIZE, ("Dense", {})], {}, "its modules are Transformer, Pooling, Normalize, Dense"),
        ([("WordWeights", {}), MEAN], {}, "its modules are Transformer, WordWeights, Pooling"),
        ([("Dense", {"in_features": 4})], {}, "its modules are Transformer, Dense"),
        ([("SpladePooling", {})], {}, "its modules are Transformer, SpladePooling"),
        ([MEAN], {"modules.json": OWN_NETWORK}, r"its modules are .*own\.Transformer"),
        ([MEAN], {"modules.json": OWN_POOLING}, r"its modules are .*own\.Pooling"),
        ([MEAN, ("Dense", {"in_features": 4})], {}, r"2_Dense/config\.json .*: out_features"),
        ([MEAN, ("Dense", GELU)], {}, r"config\.json .*: activation_function: .* 'Identity', 'Tanh'"),
        ([MEAN, ("Dense", {**LINEAR, "use_residual": True})], {}, "use_residual: "),
        ([MEAN, ("Dense", {**LINEAR, "module_input_name": "states"})], {}, "module_input_name: "),
        ([MEAN, ("Dense", {**LINEAR, "module_output_name": "scores"})], {}, "module_output_name: "),
        ([MEAN, ("Dense", LINEAR)], {}, r"model\.safetensors is missing"),
        ([MEAN, ("Dense", LINEAR)], {"2_Dense/pytorch_model.bin": b""}, r"_model\.bin is a pickle"),
        ([MEAN, ("Dense", LINEAR)], {"2_Dense/model.safetensors": b"none"}, "as a linear layer"),
        ([MEAN], {"modules.json": {}}, r"modules\.json cannot be served"),
        ([MEAN], {OPTIONS: {"model_type": "CrossEncoder"}}, "a CrossEncoder with its own modules"),
        ([MEAN], {LENGTH: {"module_output_name": "a"}}, "module_output_name: "),
        ([MEAN], {LENGTH: {"processing_kwargs": {"text": {}}}}, "processing_kwargs: "),
        ([("Pooling", WITHOUT_PROMPT)], PROMPT, "its pooling leaves prompts out"),
        ([], {"config.json": {"architectures": ["BertForMaskedLM"]}}, "is BertForMaskedLM"),
        ([], {"config.json": {"architectures": ["GPT2LMHeadModel"]}}, "is GPT2LMHeadModel"),
        ([], {"config.json": {"architectures": ["SiglipTextModel"]}}, "SiglipTextModel, .* pooling"),
        ([], {"config.json": {"architectures": ["CLIPTextModel"]}}, "CLIPTextModel, .* pooling"),
        ([], {"config.json": {"architectures": ["CLIPModel"], "text_config": {"a": 1}}}, "CLIPModel, "),
    ],
)
def test_what_is_no_encoder_is_refused(
    tmp_path: Path, steps: list[Any], files: dict[str, Any], words: str
) -> None:
    folder = saved(tmp_path, *steps)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=words):
        loaded(folder)


def test_a_graph_without_states_or_vectors_is_refused(tmp_path: Path) -> None:
    folder = graphs.saved(graphs.two_by_two(), saved(tmp_path))
    with pytest.raises(ConfigurationError, match="output sentence_embedding or last_hidden_state"):
        loaded(folder)


def test_empty_prompts_can_be_left_out_of_pooling(tmp_path: Path) -> None:
    folder = saved(tmp_path, ("Pooling", WITHOUT_PROMPT))
    assert loaded(folder).pooling == "mean"
    prompts = {"query": "", "document": ""}  # as sentence-transformers writes them by default
    (folder / OPTIONS).write_text(json.dumps({"prompts": prompts}))
    assert loaded(folder).prompts == prompts


@pytest.mark.parametrize(
    "architecture", ["BertForMaskedLM", "Qwen3ForCausalLM", "BertModel", "CLIPTextModel"]
)
def test_modules_decide_whatever_the_head(tmp_path: Path, architecture: str) -> None:
    folder = saved(tmp_path, MEAN, architectures=[architecture])
    assert Model.read(folder).description.task == "embedding"


def test_a_plain_encoder_needs_no_modules(tmp_path: Path) -> None:
    folder = saved(tmp_path, architectures=["Data2VecTextModel"])
    assert Model.read(folder).description.embedding_pipeline.pooling == "mean"
