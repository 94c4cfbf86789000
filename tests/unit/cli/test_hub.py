"""Models of the Hugging Face Hub: the real client, beside a stand-in for the hub on loopback."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smallplates.cli import hub, serve
from smallplates.errors import ConfigurationError
from smallplates.models.folder import in_place_of
from tests import servers
from tests.unit.cli import stand_in_hub
from tests.unit.cli.stand_in_hub import REPOSITORY, TOKEN, Hub

pytestmark = pytest.mark.slow

FILES = {
    "1_Pooling/config.json": b'{"a": 2}',
    "2_Dense/config.json": b'{"a": 3}',
    "2_Dense/model.safetensors": b"weights of a layer",
    "2_Dense/pytorch_model.bin": b"the same as a pickle",
    "chat_template.jinja": b"{{ messages }}",
    "config.json": b'{"a": 1}',
    "config_sentence_transformers.json": b'{"a": 4}',
    "modules.json": b"[]",
    "sentence_bert_config.json": b'{"a": 5}',
    "tokenizer.json": b"{}",
    "README.md": b"# Mood",
    "model.safetensors": b"weights of PyTorch",
    "onnx/model.onnx": b"a graph",
    "onnx/model.onnx.data": b"its large weights",
    "onnx/model.onnx_data": b"its weights",
    "onnx/model_fp16.onnx": b"another graph",
    "onnx/model_quantized.onnx": b"a graph in int8",
    "onnx/model_quantized.onnx_data": b"its weights in int8",
    "training_args.bin": b"a pickle",
}
ONLINE = {"HF_HUB_OFFLINE": "0"}  # whatever other tests have left in the environment


MOOD = (REPOSITORY, None, ["onnx"])
FETCH = """
import json, sys
from smallplates.cli import hub
from smallplates.errors import ConfigurationError
for repository, revision, kinds in json.loads(sys.argv[1]):
    try:
        print(hub.fetch(repository, revision, kinds))
    except ConfigurationError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    """A hub with all kinds of files."""
    with stand_in_hub.running(FILES) as running:
        yield running


def fetch(home: Path, url: str, *wanted: tuple[str, str | None, list[str]], **more: str) -> list[str]:
    """The folders, or the errors: the client reads the environment when it is imported."""
    env = ONLINE | {"HF_HOME": str(home), "HF_ENDPOINT": url, **more}
    done = servers.run(sys.executable, "-c", FETCH, json.dumps(wanted), env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_what_is_served_is_downloaded_and_once(server: Hub, tmp_path: Path) -> None:
    again = (REPOSITORY, "v2", ["onnx"])
    folder, same = map(Path, fetch(tmp_path, server.url, MOOD, again))
    graph = "onnx/model.onnx"
    wanted = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    wanted += ["chat_template.jinja", "config.json", "config_sentence_transformers.json"]
    wanted += ["modules.json", graph, f"{graph}.data", f"{graph}_data"]
    wanted += ["sentence_bert_config.json", "tokenizer.json"]
    assert sorted(server.asked) == wanted
    assert folder.is_relative_to(tmp_path)
    assert [(folder / name).read_bytes() for name in wanted] == [FILES[name] for name in wanted]
    assert [same, *map(Path, fetch(tmp_path, server.url, MOOD, HF_HUB_OFFLINE="1"))] == [folder] * 2
    server.asked.clear()
    fetch(tmp_path, server.url, (REPOSITORY, None, ["onnx", "int8"]), (REPOSITORY, None, ["pt"]))
    more = ["model.safetensors", "onnx/model_quantized.onnx", "onnx/model_quantized.onnx_data"]
    assert sorted(server.asked) == more


def test_static_embeddings_lie_in_a_folder_of_their_module(tmp_path: Path) -> None:
    folder = "0_StaticEmbedding"
    wanted = [f"{folder}/model.safetensors", f"{folder}/tokenizer.json"]
    files = {name: name.encode() for name in (*wanted, f"{folder}/pytorch_model.bin")}
    with stand_in_hub.running(files) as server:
        fetch(tmp_path, server.url, (REPOSITORY, None, ["static"]))
    assert sorted(server.asked) == wanted


def test_a_token_opens_a_gated_model(server: Hub, tmp_path: Path) -> None:
    gated = ("org/gated", None, ["onnx"])
    (said,) = fetch(tmp_path, server.url, gated)
    assert said.startswith(f"org/gated is gated: accept its terms on {server.url}/org/gated")
    assert "HF_TOKEN" in said
    (folder,) = fetch(tmp_path, server.url, gated, HF_TOKEN=TOKEN)
    assert Path(folder).is_dir()


def test_what_the_hub_refuses_is_one_sentence(server: Hub, tmp_path: Path) -> None:
    said = fetch(
        *(tmp_path, server.url, ("org/none", None, ["onnx"]), ("org/a--b", None, ["onnx"])),
        *((REPOSITORY, "v9", ["onnx"]), ("org/broken", None, ["onnx"])),
    )
    assert [line.partition(" on ")[0] for line in said[:2]] == [
        f"there is no folder {name}, and no such model" for name in ("org/none", "org/a--b")
    ]
    assert said[2].startswith("org/mood has no revision 'v9'")
    assert said[3].startswith(f"there is no folder org/broken, {server.url} returned 500, and the")
    assert len(said) == 4


def test_without_a_network(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{servers.free_port()}"
    for offline, reason in (("0", f"{nowhere} cannot be reached"), ("1", "HF_HUB_OFFLINE is set")):
        (said,) = fetch(tmp_path, nowhere, MOOD, HF_HUB_OFFLINE=offline)
        assert said.startswith(f"there is no folder org/mood, {reason}, and the cache in")


def test_a_model_without_onnx_names_the_command_that_exports(tmp_path: Path) -> None:
    with stand_in_hub.running({"config.json": b"{}", "model.safetensors": b""}) as running:
        (said,) = fetch(tmp_path, running.url, MOOD)
    assert "org/mood has no ONNX file; write one with `smallplates export transformers org/mood" in said
    assert "(for images, with optimum-cli)" in said


def test_a_folder_goes_before_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub.is_id(REPOSITORY)
    (tmp_path / REPOSITORY).mkdir(parents=True)
    assert not hub.is_id(REPOSITORY)
    assert not any(map(hub.is_id, ("folder", "a/b/c", "../models", "/models/food", "models/", "./a")))


@pytest.mark.parametrize("typed", ["org/moot", "org/other", "orgs/mood", "mine=org/moot"])
def test_a_mistyped_folder_is_answered_with_the_nearest(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / REPOSITORY).mkdir(parents=True)
    monkeypatch.setattr(hub, "fetch", fail_to_fetch)
    with pytest.raises(ConfigurationError) as refused:
        serve.local_place(typed, None, ["onnx"])
    assert ("asked for it" in str(refused.value)) is (typed == "orgs/mood")
    assert (f"nearest is {REPOSITORY}" in str(refused.value)) is (typed != "org/other")


def fail_to_fetch(repository: str, *_: object) -> Path:
    """The Hub, for a model that it lacks."""
    raise ConfigurationError(f"asked for it{in_place_of(Path(repository))}")
