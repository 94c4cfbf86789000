"""A real Triton serves the model repository, and answers like this service; `make test-triton`.

The wheel nvidia-pytriton carries a Triton whose only backend is Python's. Runs where SERVING_TEST_TRITON
names the interpreter of an environment with that wheel and `smallplates/export/triton/requirements.txt`.
"""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from smallplates.client import Client, ServiceUnavailableError
from smallplates.export.triton.build import build
from smallplates.settings import Settings
from tests import pictures, servers
from tests.servers import wait_for
from tests.triton_answers import check_same

PYTHON = os.environ.get("SERVING_TEST_TRITON", "")
MODEL = "food_classifier"
PHOTOS = {
    "jpeg": pictures.jpeg(),
    "upright": pictures.jpeg(480, 640),
    "large": pictures.jpeg(2000, 1500),
    "rotated": pictures.rotated(6),
    "alpha": pictures.encode(pictures.plate().convert("RGBA"), "PNG"),
    "16 bit": pictures.sixteen_bit_png(),
    "webp": pictures.encode(pictures.plate(90, 70), "WEBP"),
}
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="no Triton: make test-triton sets one up"),
    pytest.mark.timeout(300),
]


@contextmanager
def served(folder: Path, settings: Settings) -> Iterator[str]:
    """A Triton with both models, as far as it has their backends; its log and they are in `folder`."""
    repository = folder / "models"
    build(repository, settings)
    url = f"http://127.0.0.1:{(port := servers.free_port())}"
    launch = [PYTHON, "-m", "benchmarks.peers.triton_launch", str(repository), str(port)]
    options = ["--disable-auto-complete-config", "--exit-on-error=false", "--strict-readiness=false"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*launch, *options],
            cwd=servers.ROOT,
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            try:
                servers.wait_until_answers(f"{url}/v2/models/{MODEL}/ready", process)
            except (RuntimeError, TimeoutError) as error:
                raise RuntimeError((folder / "log").read_text(errors="replace")[-2000:]) from error
            yield url
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def triton_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one with two instances of the default model, and one of a copy, `birds`."""
    folder = tmp_path_factory.mktemp("triton")
    default = Settings().model_dir
    (birds := folder / "birds").mkdir()
    (birds / "1").symlink_to(default / "1")
    described = json.loads((default / "model.json").read_text())
    described |= {"name": "birds", "aliases": {}, "instances": 1}
    (birds / "model.json").write_text(json.dumps(described))
    settings = Settings(models=[str(default), str(birds)], instances=2, max_batch_size=8)
    with served(folder, settings) as url:
        yield url


@pytest.fixture(scope="module")
def onnx_url() -> Iterator[str]:
    """The address of the service in fp32, as Triton computes."""
    with servers.api("fastapi_onnx", {"SERVING_PRECISION": "fp32"}) as url:
        yield url


@pytest.fixture
def client(triton_url: str) -> Iterator[Any]:  # tritonclient has no types
    made = triton.InferenceServerClient(triton_url.removeprefix("http://"), concurrency=4)
    yield made
    made.close()


def ask(client: Any, photos: list[Any], **more: Any) -> list[list[tuple[str, float]]]:
    """Labels and probabilities of each photo."""
    images = triton.InferInput("INPUT_IMAGE", [len(photos), 1], "BYTES")
    images.set_data_from_numpy(np.array(photos, object).reshape(-1, 1))
    result = client.infer(MODEL, [images], **more)
    labels, probabilities = result.as_numpy("FOOD_LABEL"), result.as_numpy("PROBABILITY")
    pairs = zip(labels.tolist(), probabilities.tolist(), strict=True)
    return [[(a.decode(), b) for a, b in zip(*pair, strict=True)] for pair in pairs]


def native(url: str, photo: bytes) -> list[tuple[str, float]]:
    """What `POST /predict` says: the five best."""
    answer = requests.post(f"{url}/predict?top_k=5", data=photo, timeout=60).json()
    return [(candidate["label"], candidate["probability"]) for candidate in answer["top"]]


def test_what_it_tells_is_what_our_front_end_tells(triton_url: str, onnx_url: str) -> None:
    def told(url: str, suffix: str) -> Any:
        return requests.get(f"{url}/v2/models/{MODEL}{suffix}", timeout=60).json()

    theirs, ours = told(triton_url, ""), told(onnx_url, "")
    for key in ("name", "versions", "inputs", "outputs"):
        assert theirs[key] == ours[key], key
    theirs, ours = told(triton_url, "/config"), told(onnx_url, "/config")
    assert theirs["parameters"]["model.json"] == ours["parameters"]["model.json"]
    assert (theirs["max_batch_size"], theirs["instance_group"][0]["count"]) == (8, 2)


@pytest.mark.parametrize("name", PHOTOS)
def test_photos_get_the_answers_of_the_service(client: Any, onnx_url: str, name: str) -> None:
    photo = PHOTOS[name]
    wanted = native(onnx_url, photo)
    (five,) = ask(client, [photo], parameters={"top_k": 5})
    check_same(five, wanted)
    for element in (photo, base64.b64encode(photo).decode()):
        (best,) = ask(client, [element])
        check_same(best, wanted[:1])


def test_a_model_beside_it(triton_url: str) -> None:
    wait_for(lambda: requests.get(f"{triton_url}/v2/models/birds/ready", timeout=60).ok)
    with Client(triton_url, protocol="triton") as client:
        wanted = client.predict(PHOTOS["jpeg"], top_k=5)
        assert client.predict(PHOTOS["jpeg"], top_k=5, model="birds").top == wanted.top
        assert (client.model().name, client.model("birds").name) == ("food11", "birds")


def test_a_batch_is_answered_in_order(client: Any, onnx_url: str) -> None:
    photos = list(PHOTOS.values())
    answers = ask(client, photos, parameters={"top_k": 5})
    for answer, photo in zip(answers, photos, strict=True):
        check_same(answer, native(onnx_url, photo))
    with pytest.raises(InferenceServerException, match="batch-size must be <= 8"):
        ask(client, [photos[0]] * 9)


def test_requests_at_the_same_time_are_not_mixed_up(triton_url: str, onnx_url: str) -> None:
    photos = list(PHOTOS.values()) * 4
    wanted = {photo: native(onnx_url, photo) for photo in PHOTOS.values()}
    with ThreadPoolExecutor(8) as threads, Client(triton_url, protocol="triton") as asking:
        answers = threads.map(lambda photo: asking.predict(photo, top_k=5), photos)
        for photo, answer in zip(photos, answers, strict=True):
            check_same([(score.label, score.probability) for score in answer.top], wanted[photo])


@pytest.mark.parametrize(
    ("photos", "words"),
    [
        ([pictures.truncated("JPEG")()], "the image cannot be read"),
        ([b"this is not a picture!"], "not a JPEG, PNG, WebP, GIF, BMP"),
        ([b""], "the image is empty"),
        (["AAA"], "not valid base64"),
        ([PHOTOS["jpeg"], b"no picture!"], "element 1: not a JPEG"),
        ([pictures.bomb()], "at most 52000000 are accepted"),
    ],
)
def test_a_bad_photo_is_a_clear_error(client: Any, photos: Any, words: str) -> None:
    with pytest.raises(InferenceServerException, match=words) as caught:
        ask(client, photos)
    assert caught.value.status() == "400"
    assert "Traceback" not in str(caught.value)
    assert ".py" not in str(caught.value)
    assert ask(client, [PHOTOS["jpeg"]])


def test_the_other_model_lacks_nothing_but_its_backend(triton_url: str) -> None:
    """Triton has read and checked its configuration before it looks for the backend."""
    index = requests.post(f"{triton_url}/v2/repository/index", timeout=60).json()
    (model,) = (model for model in index if model["name"] == "food_classifier_onnx")
    assert model["state"] == "UNAVAILABLE"
    assert "unable to find backend library for backend 'onnxruntime'" in model["reason"]


def test_a_full_queue_is_overload_as_of_the_service(tmp_path: Path) -> None:
    settings = Settings(instances=1, max_batch_size=1, queue_size=1)
    with (
        served(tmp_path, settings) as url,
        Client(url, protocol="triton", tries=1) as client,
        ThreadPoolExecutor(12) as threads,
    ):
        items = list(threads.map(lambda photo: outcome(client, photo), [PHOTOS["large"]] * 36))
        refused = [item for item in items if isinstance(item, ServiceUnavailableError)]
        assert refused
        assert {(error.status, error.code) for error in refused} == {(503, "overloaded")}
        assert {item for item in items if isinstance(item, str)} == {
            client.predict(PHOTOS["large"]).label
        }


def outcome(client: Client, photo: bytes) -> str | ServiceUnavailableError:
    try:
        return client.predict(photo).label
    except ServiceUnavailableError as error:
        return error
