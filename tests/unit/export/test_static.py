"""`smallplates export static`: folders of Model2Vec and of StaticEmbedding become model folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from typer.testing import CliRunner

from smallplates.cli.export import app
from smallplates.models.folder import Model
from tests import exports
from tests.served_task import answers

TOKENIZER = exports.word_piece()
TOKENS = TOKENIZER.get_vocab_size()
TABLE = np.random.default_rng(0).normal(size=(TOKENS, 6)).astype(np.float32)
TEXTS = ["warm bread", "an awful soup on a cold evening with nobody there", "soup %% bread", "%%"]
UNKNOWN = TOKENIZER.token_to_id("[UNK]")
STATIC = {"path": "", "type": "sentence_transformers.models.StaticEmbedding"}
NORMALIZE = {"path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}
MAPPING = np.arange(TOKENS) % 5
FACTORS = np.linspace(0.5, 1.5, TOKENS, dtype=np.float32)


def written(folder: Path, tensors: dict[str, Any], read: str = "", **files: Any) -> Path:
    """The folder with this table; `read` is its tokenizer, `files` are further JSON files."""
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(read or TOKENIZER.to_str())
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def exported(source: Path, *options: str) -> Path:
    """The folder that the command writes; its output is the error of a failed assertion."""
    out = source.with_name(f"{source.name}-served")
    result = CliRunner().invoke(app, ["static", str(source), "--out", str(out), *options])
    assert result.exit_code == 0, result.output
    return out


def expected(text: str, table: NDArray[np.float32], left_out: int | None = None) -> NDArray[np.float32]:
    ids = [each for each in TOKENIZER.encode(text, add_special_tokens=False).ids if each != left_out]
    return table[ids].mean(0) if ids else np.zeros(table.shape[1], np.float32)


@pytest.mark.parametrize(
    ("tensors", "modules", "table", "left_out"),
    [
        ({"embedding.weight": TABLE}, [STATIC, NORMALIZE], TABLE, None),
        ({"embeddings": TABLE}, [STATIC, NORMALIZE], TABLE, UNKNOWN),
        ({"embeddings": TABLE.astype(np.float16)}, [STATIC], TABLE.astype(np.float16), UNKNOWN),
        ({"embeddings": (9 * TABLE).astype(np.int8)}, [STATIC], (9 * TABLE).astype(np.int8), UNKNOWN),
        (
            {"embeddings": TABLE[:5], "mapping": MAPPING, "weights": FACTORS},
            [STATIC],
            TABLE[MAPPING] * FACTORS[:, None],
            UNKNOWN,
        ),
    ],
)
def test_vectors_are_means_of_the_table(
    tmp_path: Path,
    tensors: dict[str, Any],
    modules: list[dict[str, str]],
    table: NDArray[Any],
    left_out: int | None,
) -> None:
    """Model2Vec leaves unknown words out, StaticEmbedding counts them; batches pad shorter texts."""
    folder = exported(written(tmp_path / "static", tensors, modules=modules))
    found = answers(folder, [{"text": text} for text in TEXTS])
    vectors = np.array([candidate["embedding"] for (candidate,) in found])
    means = np.array([expected(text, table.astype(np.float32), left_out) for text in TEXTS])
    if NORMALIZE in modules:
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    assert vectors == pytest.approx(means, abs=1e-6)
    assert Model.read(folder).description.name == "static"


def test_what_the_files_say_of_texts(tmp_path: Path) -> None:
    """The limit is the tokenizer's, Model2Vec's or the option's; prompts are those of the folder."""
    tokenizer = exports.word_piece()
    tokenizer.enable_truncation(7)
    limited = tokenizer.to_str()
    prompts = {"prompts": {"query": "warm "}, "default_prompt_name": "query", "truncate_dim": 4}
    table = {"embedding.weight": TABLE}
    nested = written(tmp_path / "nested" / "0_StaticEmbedding", table, limited).parent
    (nested / "modules.json").write_text(json.dumps([STATIC | {"path": "0_StaticEmbedding"}]))
    (nested / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    bare = written(tmp_path / "bare", {"embeddings": TABLE}, limited, config={"normalize": True})
    endless = written(tmp_path / "endless", {"embeddings": TABLE}, config={"max_length": None})
    described = [
        Model.read(exported(folder, *options)).description
        for folder, *options in (
            (nested,),
            (bare,),
            (endless,),
            (written(tmp_path / "set", table), "--max-tokens", "9", "--name", "other"),
        )
    ]
    assert [each.text_pipeline.max_tokens for each in described] == [7, 512, 8192, 9]
    assert [each.name for each in described] == ["nested", "bare", "endless", "other"]
    assert [each.embedding_pipeline.normalize for each in described] == [False, True, False, False]
    pipeline = described[0].embedding_pipeline
    assert (pipeline.prompts, pipeline.default_prompt_name) == ({"query": "warm "}, "query")
    assert pipeline.dimensions == 4


def test_a_tokenizer_without_a_token_for_unknown_words(tmp_path: Path) -> None:
    tokenizer = Tokenizer(Unigram([("a", -1.0), ("b", -2.0)], unk_id=None))
    table = {"embeddings": np.eye(2, dtype=np.float32)}
    folder = exported(written(tmp_path / "letters", table, tokenizer.to_str()))
    ((best,),) = answers(folder, [{"text": "aab"}])
    assert best["embedding"] == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("tensors", "files", "words"),
    [
        ({"embeddings": TABLE[:-1]}, {}, f"tokenizer has {TOKENS} tokens, the table only {TOKENS - 1}"),
        ({"weights": TABLE}, {}, "has no table of vectors; it has weights"),
        ({"embeddings": TABLE[0]}, {}, "has no table of vectors"),
        ({"embeddings": TABLE, "mapping": MAPPING[:-1] * 0 + TOKENS}, {}, "static embeddings: index"),
        ({"embeddings": TABLE}, {"modules": [STATIC, {**STATIC, "type": "own.Step"}]}, "own.Step"),
        ({"embeddings": TABLE}, {"modules": []}, "modules.json cannot be served"),
        ({"embeddings": TABLE}, {"tokenizer": {}}, "cannot be read as static embeddings"),
        ({"embeddings": TABLE}, {"config": {"auto_map": {"AutoModel": "own.Model"}}}, "auto_map"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, tensors: dict[str, Any], files: dict[str, Any], words: str
) -> None:
    source = written(tmp_path / "static", tensors, **files)
    result = CliRunner().invoke(app, ["static", str(source), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "nothing was exported: " in result.output
    assert words in result.output
    assert not (tmp_path / "out").exists()
