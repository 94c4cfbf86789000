"""`smallplates.tasks.embedding`: from exports of encoders to vectors, in the ONNX backend."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fastapi_onnx.backend import OnnxBackend
from smallplates.errors import ConfigurationError, InvalidRequestError, RequestError, TextTooLongError
from smallplates.models.folder import Model
from smallplates.models.tensors import Array
from smallplates.settings import Settings
from smallplates.supervision.planner import task_of
from smallplates.tasks.base import Candidate, Fields, Prepared
from smallplates.tasks.embedding import Embedding
from smallplates.tasks.text import CHARACTERS_PER_TOKEN, TOKENS
from tests import exports, graphs

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


def loaded(folder: Path, **settings: Any) -> Embedding:
    model = Model.read(folder)
    signatures = Embedding.plan(model, Settings(), graphs.compared(model))
    task = task_of(model, Settings.model_validate(settings), {}, signatures)
    assert isinstance(task, Embedding)
    return task


def answers(folder: Path, requests: Sequence[Fields]) -> list[Candidate]:
    """The answers to requests that are computed in one batch, padded as the signature says."""
    model, task = Model.read(folder), loaded(folder)
    signature = Embedding.plan(model, Settings(), graphs.compared(model))[TOKENS]
    assert signature.pads
    backend = OnnxBackend()
    backend.load(model, Settings(device="cpu"))
    prepared = [task.preprocess(fields) for fields in requests]
    items = [request.items[0] for request in prepared]
    longest = max(item[0].size for item in items)
    batch: list[Array] = [
        np.stack([np.pad(a, (0, longest - a.size), constant_values=spec.padding) for a in column])
        for spec, column in zip(signature.inputs, zip(*items, strict=True), strict=True)
    ]
    (vectors,) = backend.infer(signature, batch)
    return [
        task.postprocess(request, [[row]], 1)[0] for request, row in zip(prepared, vectors, strict=True)
    ]


def states_of(text: str) -> NDArray[np.float32]:
    """The tokens' states of a text, [tokens, 4]."""
    ids = WORD_PIECE.encode(text).ids
    return STATES[ids] * np.arange(1, len(ids) + 1, dtype=np.float32)[:, None]


def vectors_of(folder: Path, texts: Sequence[str], **fields: Any) -> NDArray[np.float32]:
    candidates = answers(folder, [{"text": text, **fields} for text in texts])
    return np.array([candidate["embedding"] for candidate in candidates])


POOLED = {
    "cls_token": lambda states: states[0],
    "max_tokens": lambda states: states.max(0),
    "mean_tokens": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / np.sqrt(len(states)),
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


def test_a_graph_without_a_mask_is_pooled(tmp_path: Path) -> None:
    folder = exports.encoded(tmp_path / "made", exports.word_piece(), {}, names=["input_ids"])
    model = Model.read(folder)
    backend = OnnxBackend()
    signature = backend.signature(model)
    backend.load(model, Settings(device="cpu"))
    ids = np.array([WORD_PIECE.encode(TEXTS[0]).ids])
    (vectors,) = backend.infer(signature, [ids])
    assert vectors[0] == pytest.approx(states_of(TEXTS[0]).mean(0), abs=1e-5)


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


def ids_of(task: Embedding, text: str, **fields: Any) -> list[int]:
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


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([("Pooling", {"pooling_mode_weightedmean_tokens": True})], "pooling: "),
        ([("Pooling", {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True})], "pooling: "),
        ([MEAN, ("LayerNorm", {})], "its modules are Transformer, Pooling, LayerNorm; supported are"),
        ([MEAN, NORMALIZE, ("Dense", {})], "its modules are Transformer, Pooling, Normalize, Dense"),
        ([("WordWeights", {}), MEAN], "its modules are Transformer, WordWeights, Pooling"),
        ([("Dense", {"in_features": 4})], "its modules are Transformer, Dense; supported are"),
        ([("SpladePooling", {})], "its modules are Transformer, SpladePooling; supported are"),
        ([MEAN, ("Dense", {"in_features": 4})], r"2_Dense/config\.json cannot be served: out_features"),
        (
            [MEAN, ("Dense", {**LINEAR, "activation_function": "torch.nn.GELU"})],
            r"config\.json cannot be served: activation_function: Input should be 'Identity', 'Tanh'",
        ),
        ([MEAN, ("Dense", {**LINEAR, "use_residual": True})], "use_residual: Input should be False"),
        ([MEAN, ("Dense", {**LINEAR, "module_input_name": "token_embeddings"})], "module_input_name: "),
        ([MEAN, ("Dense", {**LINEAR, "module_output_name": "scores"})], "module_output_name: "),
        ([MEAN, ("Dense", LINEAR)], r"model\.safetensors is missing"),
    ],
)
def test_other_modules_are_refused(tmp_path: Path, steps: list[Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Model.read(saved(tmp_path, *steps))


def test_code_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN)
    text = (folder / "modules.json").read_text()
    for kind in ("Transformer", "Pooling"):
        (folder / "modules.json").write_text(
            text.replace(f"sentence_transformers.models.{kind}", f"own.{kind}")
        )
        with pytest.raises(ConfigurationError, match=rf"its modules are .*own\.{kind}"):
            Model.read(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            OPTIONS,
            {"model_type": "CrossEncoder"},
            "a CrossEncoder with its own modules is not supported",
        ),
        (
            "sentence_bert_config.json",
            {"module_output_name": "sentence_embedding"},
            "module_output_name: ",
        ),
        ("1_Pooling/config.json", {"include_prompt": False}, "its pooling leaves prompts out"),
    ],
)
def test_other_options_are_refused(tmp_path: Path, name: str, content: Any, words: str) -> None:
    folder = saved(tmp_path, MEAN)
    (folder / OPTIONS).write_text(json.dumps({"prompts": {"query": "warm "}}))
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=words):
        Model.read(folder)


def test_empty_prompts_can_be_left_out_of_pooling(tmp_path: Path) -> None:
    folder = saved(tmp_path, ("Pooling", {"pooling_mode": "mean", "include_prompt": False}))
    prompts = {"query": "", "document": ""}  # as sentence-transformers writes them by default
    (folder / OPTIONS).write_text(json.dumps({"prompts": prompts}))
    assert loaded(folder).prompts == prompts


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN, ("Dense", LINEAR))
    (folder / "2_Dense" / "pytorch_model.bin").touch()
    with pytest.raises(ConfigurationError, match=r"pytorch_model\.bin is a pickle"):
        Model.read(folder)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, MEAN, ("Dense", LINEAR))
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ConfigurationError, match="cannot be read as a linear layer"):
        OnnxBackend().signature(Model.read(folder))
    (folder / "modules.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"modules\.json cannot be served"):
        Model.read(folder)
    (folder / "modules.json").unlink()
    graphs.saved(graphs.two_by_two(), folder)
    with pytest.raises(
        ConfigurationError, match="needs the output sentence_embedding or last_hidden_state"
    ):
        OnnxBackend().signature(Model.read(folder))


def test_prompts_that_pooling_leaves_out_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, ("Pooling", {"pooling_mode_mean_tokens": True, "include_prompt": False}))
    assert loaded(folder).pooling == "mean"
    (folder / OPTIONS).write_text('{"prompts": {"query": "query: "}}')
    with pytest.raises(ConfigurationError, match="include_prompt"):
        Model.read(folder)


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "Qwen3ForCausalLM", "BertModel"])
def test_modules_decide_whatever_the_head(tmp_path: Path, architecture: str) -> None:
    folder = saved(tmp_path, MEAN, architectures=[architecture])
    assert Model.read(folder).description.task == "embedding"


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "GPT2LMHeadModel"])
def test_other_networks_are_refused(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(ConfigurationError, match=f"architectures is {architecture}"):
        Model.read(saved(tmp_path, architectures=[architecture]))
