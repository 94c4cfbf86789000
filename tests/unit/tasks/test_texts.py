"""`smallplates.tasks.text`: what is true of every task that tokenises texts."""

import json
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from smallplates.errors import ConfigurationError, InvalidTextError, TextTooLongError
from smallplates.models.folder import Model
from smallplates.models.task_kinds import kind_of
from smallplates.settings import Settings
from smallplates.supervision.planner import planner
from smallplates.tasks.base import Prepared
from smallplates.tasks.text import MAX_BYTES, MAX_REQUEST_BYTES, TOKENS
from smallplates.tasks.tokenizer import quick_tokenizer
from tests import exports, graphs
from tests.served_task import ServedTask, loaded


class Kind(NamedTuple):
    task: str
    save: Callable[..., Path]
    first: str
    second: str


KINDS = [
    Kind("text-classification", exports.saved, "text", "text_pair"),
    Kind("question-answering", exports.asked, "question", "context"),
]
of_both = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.task)
of_tokenisers = pytest.mark.parametrize("tokenizer", [exports.word_piece(), exports.byte_level()])


@pytest.mark.parametrize("lowercase", [True, False])
@given(
    text=st.lists(
        st.one_of(
            st.text(st.characters(min_codepoint=32, max_codepoint=126)), st.sampled_from(exports.SPECIAL)
        )
    ).map(" ".join)
)
def test_the_quick_tokeniser_does_the_same_with_printable_ascii(lowercase: bool, text: str) -> None:
    tokenizer = exports.word_piece()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    quick = quick_tokenizer(tokenizer)
    assert quick is not tokenizer
    expected, found = tokenizer.encode(text, "The soup"), quick.encode(text, "The soup")
    for name in ("ids", "type_ids", "offsets", "word_ids"):
        assert getattr(found, name) == getattr(expected, name)


def test_a_tokeniser_has_a_quick_one_only_if_both_do_the_same() -> None:
    with_accent = exports.word_piece()
    with_accent.add_tokens([AddedToken("é", normalized=True)])
    for tokenizer in (exports.byte_level(), with_accent):
        assert quick_tokenizer(tokenizer) is tokenizer


@pytest.mark.parametrize(
    "text", ["warm soup", "wårm söup", "warm\tsoup", "warm soup漢字", "warm\x07 soup"]
)
def test_all_texts_get_the_tokens_of_the_file(tmp_path: Path, text: str) -> None:
    task = loaded(exports.saved(tmp_path, exports.word_piece(), {}))
    (prepared,) = task.preprocess_all([{"text": text}])
    assert isinstance(prepared, Prepared)
    assert prepared.items[0][0].tolist() == exports.word_piece().encode(text).ids


@of_both
def test_a_token_that_the_network_lacks_is_the_clients_error(tmp_path: Path, kind: Kind) -> None:
    size = exports.word_piece().get_vocab_size()
    folder = kind.save(tmp_path / "made", exports.word_piece(), {"vocab_size": size})
    (folder / "tokenizer_config.json").write_text('{"additional_special_tokens": ["<dish>"]}')
    task = loaded(folder)
    assert task.preprocess({kind.first: "warm", kind.second: "soup"}).items
    with pytest.raises(InvalidTextError, match="<dish>"):
        task.preprocess({kind.first: "warm", kind.second: "a <dish> of soup"})


@of_both
def test_the_planner_asks_the_backend(tmp_path: Path, kind: Kind) -> None:
    served = ServedTask(kind.save(tmp_path / "made", exports.word_piece(), {}))
    plan = planner("fastapi_onnx.backend:OnnxBackend", Settings())(served.model, Event())
    assert plan.signatures == served.signatures
    outputs = [spec.name for spec in plan.signatures[TOKENS].outputs]
    assert outputs == list(kind_of(kind.task).outputs)
    assert plan.signatures[TOKENS].pads


@of_both
def test_a_model_json_may_describe_the_same(tmp_path: Path, kind: Kind) -> None:
    folder = kind.save(tmp_path / "made", exports.word_piece(), {})
    text = {"max_tokens": 8, "pad_token_id": 0}
    content = {"name": "own", "version": "1", "task": kind.task, "labels": exports.LABELS, "text": text}
    (folder / "1").mkdir()
    (folder / "model.onnx").rename(folder / "1" / "model.onnx")
    (folder / "model.json").write_text(json.dumps(content))
    (item,) = loaded(folder).preprocess({kind.first: "warm", kind.second: "soup"}).items
    assert item[0].tolist() == exports.word_piece().encode("warm", "soup").ids
    (folder / "model.json").write_text(json.dumps({**content, "text": None}))
    with pytest.raises(ConfigurationError, match=f"text: required for the task {kind.task}"):
        Model.read(folder)


TWO_LABELS = {"id2label": {"0": "O", "1": "B-DISH"}}
CUT_LEFT = {"padding_side": "left"}
OWN_CODE = {"auto_map": {"AutoTokenizer": ["x", None]}}


@pytest.mark.parametrize(
    ("save", "config", "graph", "files", "words"),
    [
        (
            exports.saved,
            {"problem_type": "regression"},
            {},
            {},
            'is regression, with .* "task": "tensor"',
        ),
        (exports.saved, {"architectures": ["BertForMaskedLM"]}, {}, {}, "is BertForMaskedLM"),
        (exports.saved, {"auto_map": {"AutoConfig": "x"}}, {}, {}, r"config\.json .*auto_map"),
        (exports.saved, {}, {}, {"tokenizer_config.json": OWN_CODE}, r"izer_config\.json .*auto_map"),
        (exports.asked, {}, {}, {"tokenizer_config.json": CUT_LEFT}, "padding_side is left"),
        (exports.saved, {}, {}, {"tokenizer.json": {}}, r"tokenizer\.json cannot be read"),
        (exports.saved, {}, {}, {"tokenizer.json": None}, r"tokenizer\.json is missing"),
        (exports.saved, {}, {"axes": ("batch_size", 16)}, {}, r"input_ids has the shape \[16\]"),
        (exports.saved, {}, {"names": ("input_ids", "places")}, {}, "places is not one of input_ids"),
        (exports.asked, {}, {"outputs": ("start_logits", "other")}, {}, r"end_logits .*; other"),
        (exports.tagged, TWO_LABELS, {}, {}, r"needs an output logits \[token, 2 labels\]"),
    ],
)
def test_what_is_no_export_of_texts_is_refused(
    tmp_path: Path,
    save: Callable[..., Path],
    config: dict[str, Any],
    graph: dict[str, Any],
    files: dict[str, Any],
    words: str,
) -> None:
    folder = save(tmp_path / "made", exports.word_piece(), config, **graph)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
        if content is None:
            (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=words):
        loaded(folder)


def test_a_graph_of_another_task_or_of_fewer_labels_is_refused(tmp_path: Path) -> None:
    two = graphs.text_classifier(exports.embeddings(exports.word_piece(), 2))
    for save, words in (
        (exports.saved, r"output logits \[3 labels\] .* has logits \[2\]"),
        (exports.asked, "needs an output start_logits"),
    ):
        folder = save(tmp_path / save.__name__, exports.word_piece(), {})
        with pytest.raises(ConfigurationError, match=words):
            loaded(graphs.saved(two, folder))


@of_both
@pytest.mark.parametrize(
    ("normalizer", "text", "most"),
    [
        (normalizers.NFKC(), "\ufdfa", 7943),  # becomes 33 bytes
        (normalizers.NFD(), "\ud55c", 29127),  # 9 bytes
        (normalizers.BertNormalizer(), "\u6c64", 52428),  # spaces around it
        (normalizers.Sequence([normalizers.Prepend("x"), normalizers.NFC()]), "\ufdfa", 87381),
    ],
)
def test_bytes_count_after_normalisation(
    tmp_path: Path, kind: Kind, normalizer: Any, text: str, most: int
) -> None:
    tokenizer = exports.byte_level()
    tokenizer.normalizer = normalizer
    task = loaded(kind.save(tmp_path / "made", tokenizer, {}))
    for count, refused in ((most - 2, "tokens"), (most + 1, "bytes")):
        with pytest.raises(TextTooLongError, match=refused):
            task.preprocess({kind.first: "w", kind.second: text * count})


@of_both
def test_all_texts_of_a_request_are_limited_together(tmp_path: Path, kind: Kind) -> None:
    tokenizer = exports.byte_level()
    tokenizer.normalizer = normalizers.NFKC()
    task = loaded(kind.save(tmp_path / "made", tokenizer, {}))
    for text in ("soup " * 40_000, "\ufdfa" * 6000):
        size = 33 * 6000 if text[0] == "\ufdfa" else len(text)
        count = MAX_REQUEST_BYTES // size
        fields = {kind.first: text[:1], kind.second: text}
        task.check_all([fields] * (count - 1))
        with pytest.raises(TextTooLongError):
            task.check_all([fields] * (count + 1))
    task.check_all([{kind.first: "\ud800", kind.second: "\ud800" * 20_000}])  # refused one by one


@of_both
@pytest.mark.parametrize("text", ["data:image/png;base64,AAAA", "DATA:audio/x-wav,..."])
def test_a_file_is_no_text(tmp_path: Path, kind: Kind, text: str) -> None:
    task = loaded(kind.save(tmp_path / "made", exports.word_piece(), {}), long_text="truncate")
    with pytest.raises(InvalidTextError):
        task.preprocess({kind.first: "warm", kind.second: text})
    assert task.preprocess({kind.first: "warm", kind.second: "data: warm soup; data:image"}).items


@of_both
@of_tokenisers
@pytest.mark.parametrize("text", exports.HOSTILE.values(), ids=exports.HOSTILE)
def test_hostile_texts_are_prepared_or_refused(
    tmp_path: Path, kind: Kind, tokenizer: Tokenizer, text: str
) -> None:
    task = loaded(kind.save(tmp_path / "made", tokenizer, {}), long_text="truncate")
    text = text.encode()[: MAX_BYTES - 100].decode(errors="ignore")
    fields = {kind.second: text, kind.first: "warm"}
    try:
        items = task.preprocess(fields).items
    except (InvalidTextError, TextTooLongError):
        return
    assert all(1 <= len(item[0]) <= 64 for item in items)
