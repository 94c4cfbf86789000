"""Classifiers answer as transformers' own pipelines do, on both backends; images over HTTP."""

import io
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from PIL import Image
from transformers import AutoImageProcessor, pipeline

from tests import pictures
from tests.transformers import folders
from tests.transformers.answers import Answers, loaded
from tests.transformers.conftest import BACKENDS, service

TOLERANCE = 1e-3
"""Of a probability; labels whose probabilities are closer may change places."""

Kept = Callable[..., Path]
Scores = Mapping[str, float]
on_both_backends = pytest.mark.parametrize("backend", BACKENDS)
MULTI_LABEL = {"problem_type": "multi_label_classification"}


def by_label(candidates: Sequence[Mapping[str, Any]], name: str) -> Scores:
    """Scores by label; the number `name` of each entry."""
    return {candidate["label"]: candidate[name] for candidate in candidates}


def answered(answers: Answers, requests: Sequence[Mapping[str, Any]]) -> list[Scores]:
    """All scores for each request; the requests share batches."""
    return [by_label(candidates, "probability") for candidates in answers(requests)]


def assert_same(actual: Sequence[Scores], expected: Sequence[Scores]) -> None:
    """Checks all scores, and the best label where it is clearly the best; labels must differ."""
    assert len({best(scores) for scores in expected}) > 1, "the cases cannot tell labels apart"
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
        first, second = sorted(theirs.values(), reverse=True)[:2]
        if first - second > TOLERANCE:
            assert best(ours) == best(theirs)


def best(scores: Scores) -> str:
    """The label of the highest score."""
    return max(scores, key=scores.__getitem__)


REQUESTS: list[dict[str, Any]] = [
    *({"text": text} for text in folders.TEXTS),
    *({"text": first, "text_pair": second} for first, second in folders.PAIRS),
]


def expected_of_texts(folder: Path) -> list[Scores]:
    """What transformers' pipeline answers to REQUESTS."""
    classify = pipeline("text-classification", model=str(folder), device="cpu", top_k=None)
    options = {"truncation": True, "max_length": folders.TOKENS}
    return [by_label(classify(fields, **options), "score") for fields in REQUESTS]


@on_both_backends
@pytest.mark.parametrize(
    ("network", "changes"),
    [(name, {}) for name in folders.NETWORKS] + [("bert", MULTI_LABEL)],
    ids=[*folders.NETWORKS, "bert, multi-label"],
)
def test_texts(backend: str, network: str, changes: dict[str, str], kept: Kept) -> None:
    folder = kept(folders.text_classifier, network, **changes)
    assert_same(answered(loaded(backend, folder), REQUESTS), expected_of_texts(folder))


@on_both_backends
def test_a_folder_that_optimum_cli_has_written(backend: str, kept: Kept, tmp_path: Path) -> None:
    source, folder = kept(folders.text_classifier, "distilbert"), tmp_path / "sentiment"
    cli = Path(sys.executable).with_name("optimum-cli")
    task = ["--task", "text-classification"]
    subprocess.run([cli, "export", "onnx", "--model", source, *task, folder], check=True, timeout=110)
    if backend == "fastapi_pt":
        (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    assert_same(answered(loaded(backend, folder), REQUESTS), expected_of_texts(source))


@on_both_backends
@pytest.mark.parametrize(
    ("network", "changes"), [*((name, {}) for name in folders.IMAGE_NETWORKS), ("vit", MULTI_LABEL)]
)
def test_images(backend: str, network: str, changes: dict[str, str], kept: Kept) -> None:
    folder = kept(folders.image_classifier, network, **changes)
    modes = [pictures.plate(200, 150).convert("L"), pictures.plate(150, 200).convert("P")]
    files = [pictures.encode(image, "PNG") for image in [*folders.samples(), *modes]]
    files.append(pictures.encode(pictures.plate(97, 80), "JPEG"))
    processor = AutoImageProcessor.from_pretrained(folder, use_fast=False)
    classify = pipeline(
        "image-classification", model=str(folder), image_processor=processor, device="cpu"
    )
    count = len(folders.COLOURS)
    expected = [by_label(classify(Image.open(io.BytesIO(file)), top_k=count), "score") for file in files]
    with service(backend, folder) as url:
        answers = [requests.post(f"{url}/predict?top_k={count}", file, timeout=60) for file in files]
    assert_same([by_label(answer.json()["top"], "probability") for answer in answers], expected)


@on_both_backends
def test_tensors(backend: str, kept: Kept) -> None:
    folder = kept(folders.text_classifier, "bert")
    names = ("input_ids", "attention_mask", "token_type_ids")

    def ask(url: str, ids: list[int]) -> requests.Response:
        values = (ids, [1] * len(ids), [0] * len(ids))
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [1, len(ids)], "data": data}
            for name, data in zip(names, values, strict=True)
        ]
        path = f"{url}/v2/models/{folder.name}_tensor/infer"
        return requests.post(path, json={"inputs": inputs}, timeout=60)

    classify = pipeline("text-classification", model=str(folder), device="cpu", top_k=None)
    text = folders.TEXTS[0]
    theirs = by_label(classify({"text": text}, function_to_apply="none"), "score")
    with service(backend, folder) as url:
        (output,) = ask(url, classify.tokenizer(text)["input_ids"]).json()["outputs"]
        assert (output["name"], output["shape"]) == ("logits", [1, len(folders.LABELS)])
        assert output["data"] == pytest.approx([theirs[n] for n in folders.LABELS], abs=TOLERANCE)
        assert ask(url, [5, 10**6, 5]).status_code == 400
        assert ask(url, [5, 6, 5]).status_code == 200
