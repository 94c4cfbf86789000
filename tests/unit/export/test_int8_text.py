"""int8 of networks for texts: `smallplates quantize`, and what the ONNX backend makes of it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from benchmarks import text_model
from fastapi_onnx.network import FP32, INT8, Network, cpu_candidates
from smallplates.engine.backend import Trial
from smallplates.errors import ConfigurationError
from smallplates.models.comparison import probabilities
from smallplates.models.description import Kind
from smallplates.models.folder import Model
from smallplates.settings import Settings
from smallplates.worker.choice import Candidate
from smallplates.worker.precision_check import MAX_EXCESS, Samples, sample_tokens
from tests import exports

pytestmark = [pytest.mark.slow, pytest.mark.torch]
FILE: Kind = "model_quantized.onnx"


def export(*words: str | Path) -> str:
    from smallplates.cli.export import quantise_app

    result = CliRunner().invoke(quantise_app, [*map(str, words)])
    assert result.exit_code == (1 if "no int8 file was made" in result.output else 0), result.output
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with its int8 file, judged with 60 sentences that have labels."""
    made = tmp_path_factory.mktemp("models") / "sentiment"
    text_model.make(made, width=48, layers=2)
    sentences = made.parent / "sentences.tsv"
    lines = [f"{text}\t{index % 2}" for index, text in enumerate(text_model.texts(60))]
    sentences.write_text("\n".join(["sentence\tlabel", *lines, "\t1", ""]))
    said = export(made, "--calibrate", sentences)
    assert f"{FILE}: fit; it names fp32's class for" in said
    return made


def test_the_verdict_is_kept_beside_the_file(folder: Path) -> None:
    from smallplates.export.int8_verdict import Verdict

    kept = Model.read(folder).verdict(FILE)
    assert kept is not None
    verdict = Verdict.of(kept)
    assert (verdict.fit, verdict.photos, verdict.method) == (True, 60, "dynamic")
    assert verdict.agreement >= 0.98
    assert set(verdict.accuracy) == {"fp32", "int8"}
    assert verdict.megabytes["int8"] < verdict.megabytes["fp32"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [
            *("config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"),
            *(FILE, "model_quantized.json"),
        ]
    )


def on_cpu(model: Model, **settings: str) -> tuple[str, str]:
    values = {"device": "cpu", "cpu_runtime": "onnxruntime"} | settings
    info = Network.on_cpu(model, Settings.model_validate(values), None).info("cpu", None)
    return info.precision, info.precision_reason


def test_auto_serves_it_where_it_is_fit_and_faster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model.read(folder)
    tried = []

    def measured(
        candidates: list[Candidate], _load: object, samples: Callable[[], Samples], *_: object
    ) -> list[Trial]:
        tried.append((candidates[1].max_difference, [array.shape for array in samples().inputs]))
        reports = [Trial(each.runtime, each.precision, "faster") for each in candidates]
        return [reports[0], replace(reports[1], chosen=True)]

    monkeypatch.setattr("smallplates.worker.choice.measure", measured)
    assert on_cpu(model) == ("int8", "faster")
    verdict = model.verdict(FILE)
    assert verdict is not None
    assert tried == [(verdict.sample_difference + MAX_EXCESS, [(8, 32), (8, 32)])]
    for precision in ("fp32", "int8"):
        assert on_cpu(model, precision=precision) == (precision, f"SERVING_PRECISION={precision}")


def test_both_precisions_compute_nearly_the_same(folder: Path) -> None:
    from smallplates.export.int8_text import logits_of, network

    model = Model.read(folder)
    networks = (network(model, model.file(kind)) for kind in (FP32, INT8))
    fp32, int8 = (logits_of(each)(sample_tokens(model)) for each in networks)
    assert 0 < probabilities(fp32, int8).mean < 0.1


def test_only_a_runtime_that_is_fast_in_dynamic_int8_is_tried_with_it(folder: Path) -> None:
    candidates = cpu_candidates(Model.read(folder), Settings(), "")
    refusals = {each.runtime: each.refusal for each in candidates if each.precision == "int8"}
    assert refusals == {
        "onnxruntime": "",
        "openvino": "openvino is not faster in dynamic int8 than in fp32",
    }


def test_what_is_not_fit_is_not_served_unasked(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.onnx", "tokenizer.json", FILE):
        (tmp_path / name).symlink_to(folder / name)
    model = Model.read(tmp_path)
    assert on_cpu(model)[1] == f"model.json does not say whether {FILE} is fit for use"
    verdict = json.loads((folder / "model_quantized.json").read_text())
    kept = tmp_path / "model_quantized.json"
    kept.write_text(json.dumps(verdict | {"fit": False, "reason": "it is wrong"}))
    assert on_cpu(model) == ("fp32", f"{FILE} is not fit for use: it is wrong")
    kept.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"model_quantized\.json is invalid"):
        on_cpu(model)


@pytest.mark.parametrize("changed", ["model.onnx", "model.onnx.data"])
def test_a_file_made_from_other_weights_is_refused(
    folder: Path, tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shutil.copytree(folder, tmp_path / "own")
    with (own / changed).open("ab") as file:  # protobuf: an unknown field
        file.write(b"\x98\x3f\x01")
    reason = f"{FILE} was made from other weights: run `smallplates quantize` again"
    assert on_cpu(Model.read(own))[1] == reason
    with pytest.raises(ConfigurationError, match="was made from other weights"):
        on_cpu(Model.read(own), precision="int8")
    calls: list[Kind] = []
    sha256 = Model.fp32_sha256

    def counted(self: Model, int8: Kind) -> str:
        calls.append(int8)
        return sha256(self, int8)

    monkeypatch.setattr(Model, "fp32_sha256", counted)
    cpu_candidates(Model.read(own), Settings(), "")
    assert calls == [FILE]  # once for both runtimes


def test_nothing_is_changed_where_it_cannot_be_made(folder: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    empty = tmp_path / "empty.tsv"
    empty.write_text("sentence\tlabel\n \t1\n")
    assert "has no sentence that the model takes" in export(folder, "--calibrate", empty)
    (latin := tmp_path / "latin.tsv").write_bytes("caf\xe9\t1\n".encode("latin-1"))
    assert f"{latin} is not text in UTF-8" in export(folder, "--calibrate", latin)
    (tmp_path / "other.tsv").write_text("bandu\n")
    said = export(folder, "--calibrate", tmp_path / "other.tsv", "--file", empty)
    assert "cannot be loaded" in said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_label_that_the_model_does_not_have_is_refused(folder: Path, tmp_path: Path) -> None:
    (misspelt := tmp_path / "misspelt.tsv").write_text("sentence\tlabel\nfine\t1\ngood\tPOSITVE\n")
    said = export(folder, "--calibrate", misspelt)
    known = ", ".join(Model.read(folder).labels)
    assert f"{misspelt}, line 3: the label 'POSITVE' is none of {known}" in said


@pytest.mark.parametrize("task", ["embedding", "ranking", "token-classification"])
def test_what_is_not_a_texts_class_is_judged_by_its_own_measure(tmp_path: Path, task: str) -> None:
    tokenizer = exports.word_piece()
    if task == "embedding":
        folder = exports.encoded(tmp_path / "made", tokenizer, {})
        dense = {"in_features": 4, "out_features": 4, "activation_function": "torch.nn.Identity"}
        exports.modules(folder, ("Pooling", {"pooling_mode_cls_token": True}), ("Dense", dense))
        tensors = {"linear.weight": np.eye(4, dtype=np.float32), "linear.bias": np.zeros(4, np.float32)}
        save_file(tensors, folder / "2_Dense" / "model.safetensors")
        lines = ["warm\tbread", "soup", " "]
        said = "the cosine of 2 texts with fp32 is 1.0000 on average"
    elif task == "token-classification":
        folder = exports.tagged(tmp_path / "made", tokenizer, {})
        lines = ["warm soup\tno label", "bread"]
        said = "it names fp32's class for 100.0% of 7 tokens"
    else:
        folder = exports.ranked(tmp_path / "made", tokenizer, {})
        lines = ["warm\tbread", "warm\tsoup", "alone"]
        said = "the scores of 2 texts differ from fp32 by 0.0000"
    (texts := tmp_path / "texts.txt").write_text("\n".join(lines))
    assert f"{FILE}: fit; {said}" in export(folder, "--calibrate", texts)
    kept = Model.read(folder).verdict(FILE)
    assert kept is not None
    assert (kept.fit, kept.method, kept.sample_difference) == (True, "dynamic", 0.0)


def test_other_directions_and_scores_are_not_fit() -> None:
    from smallplates.export.int8_text import closeness, likeness

    vectors = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    assert likeness(vectors, 3 * vectors)["fit"]
    turned = vectors.copy()
    turned[0, :4] *= -1
    for other in (turned, vectors + np.float32(0.3) * vectors[::-1]):
        assert not likeness(vectors, other)["fit"]
    scores = np.linspace(-8, 8, 50, dtype=np.float32)[:, None]
    assert closeness(scores, scores + np.float32(0.05))["fit"]
    assert not closeness(scores, scores + 1)["fit"]


def test_classes_that_do_not_exclude_each_other_are_judged_by_their_probabilities(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("model.onnx", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(folder / name)
    config = json.loads((folder / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (tmp_path / "config.json").write_text(json.dumps(config))
    graph = onnx.load(tmp_path / "model.onnx")
    (logits,) = (node for node in graph.graph.node if "logits" in node.output)
    logits.output[0] = "before"
    more = onnx.numpy_helper.from_array(np.array(3, np.float32), "more")
    graph.graph.initializer.append(more)
    graph.graph.node.append(onnx.helper.make_node("Add", ["before", "more"], ["logits"]))
    given = tmp_path / "given.onnx"
    onnx.save(graph, given)
    sentences = tmp_path / "sentences.tsv"
    sentences.write_text("\n".join(text_model.texts(20)))
    said = export(tmp_path, "--calibrate", sentences, "--file", given)
    assert f"{FILE}: NOT FIT; the scores of 20 texts differ from fp32" in said
