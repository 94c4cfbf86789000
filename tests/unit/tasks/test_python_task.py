"""Python of one's own: what its declarations mean, what is refused, and `smallplates check`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smallplates.cli import task_check as check
from smallplates.engine.backend import BackendInfo, DeclaredBackend
from smallplates.errors import ConfigurationError, InvalidJsonError
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model
from smallplates.settings import ROOT, Settings
from smallplates.tasks.python.backend import MAX_PROBLEMS, MAX_TEXT, PythonBackend, Status, TaskError
from smallplates.tasks.python.web import PythonRequests
from smallplates.web.api.documentation import describe_predict
from smallplates.worker import cuda_driver
from tests import servers

CODE = """
import dataclasses

@dataclasses.dataclass
class Point:
    x: float
    label: str = ""

class Doubling:
    Request = Point
    Answer = Point

    def load(self, folder, device):
        self.folder, self.device = folder, device

    def infer(self, items):
        return [Point(2 * item.x, item.label) for item in items]

class WithExample(Doubling):
    example = {"x": 21}

class Lists(Doubling):
    Request = Answer = list[float]
    def infer(self, items):
        return items
"""


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backend sets for a worker's process ends with the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module `own` that can be imported; the model's folder lies beside it."""
    file = tmp_path / "code" / "own.py"
    file.parent.mkdir()
    file.write_text(CODE)
    monkeypatch.syspath_prepend(file.parent)
    yield file
    for name in [name for name in sys.modules if name.partition(".")[0] == "own"]:
        del sys.modules[name]


def described(folder: Path, task: str = "own:Doubling", **more: Any) -> Model:
    (folder / "model").mkdir(exist_ok=True)
    fields = {"name": "own", "version": "3", "task": task, "files": {}} | more
    return Model(folder / "model", ModelDescription.model_validate(fields))


def loaded(model: Model, warm: bool = True, **settings: Any) -> tuple[PythonBackend, BackendInfo]:
    backend = PythonBackend()
    info = backend.load(model, Settings.model_validate({"device": "cpu"} | settings))
    if warm:
        backend.trim()
    return backend, info


def asked(backend: PythonBackend, *requests: bytes, **limits: int) -> list[tuple[int, str]]:
    description = ModelDescription(name="own", version="3", task="own:X", files={}, limits=limits)
    (signature,) = PythonRequests.plan(Model(Path(), description), Settings())
    width = max(map(len, requests))
    batch = np.frombuffer(b"".join(data.ljust(width) for data in requests), np.uint8)
    statuses, answers = backend.infer(signature, [batch.reshape(len(requests), width)])
    return [
        (int(status), answer.tobytes().decode().rstrip())
        for status, answer in zip(statuses, answers, strict=True)
    ]


def test_a_class_need_not_be_a_subclass_and_gets_its_versions_folder(
    module: Path, tmp_path: Path
) -> None:
    backend, info = loaded(described(tmp_path))
    assert isinstance(backend, DeclaredBackend)
    assert backend._task.folder == module.parent.parent / "model" / "3"
    assert backend._task.device == info.device == "cpu"
    assert asked(backend, b'{"x": 1}', b'{"x": 2.5, "label": "\xc3\xa9"}') == [
        (Status.ANSWER, '{"x":2.0,"label":""}'),
        (Status.ANSWER, '{"x":5.0,"label":"é"}'),
    ]
    assert backend.schemas["request"]["required"] == ["x"]
    backend.close()


@pytest.mark.parametrize(
    ("task", "settings", "more", "cap"),
    [
        ("Doubling", {}, "", 8),
        ("Doubling", {"max_batch_size": 3}, "", 3),
        ("Doubling", {}, "max_batch_size = 16", 16),
        ("Doubling", {}, "max_batch_size = 512", 512),
        ("Doubling", {"max_batch_size": 5}, "max_batch_size = 16", 5),
        ("Doubling", {"max_batch_size": 100}, "max_batch_size = 512", 100),
        ("WithExample", {}, "max_batch_size = 200", 200),
        ("WithExample", {}, "max_batch_size = 4", 4),
        ("WithExample", {}, "", 0),
    ],
)
@pytest.mark.usefixtures("module")
def test_without_an_example_the_largest_batch_is_declared(
    module: Path, tmp_path: Path, task: str, settings: dict[str, Any], more: str, cap: int
) -> None:
    module.write_text(f"{CODE}\nclass Other({task}):\n    own = 1\n    {more}\n")
    backend, _ = loaded(described(tmp_path, "own:Other"), **settings)
    assert backend.batch_cap == cap


@pytest.mark.usefixtures("module")
def test_warm_up_computes_the_example_and_afterwards_spaces_are_no_request(tmp_path: Path) -> None:
    backend, _ = loaded(described(tmp_path, "own:WithExample"), warm=False)
    assert asked(backend, b" ", b"  ") == [(Status.ANSWER, '{"x":42.0,"label":""}')] * 2
    backend.trim()
    assert asked(backend, b" ")[0][0] == Status.NOT_JSON


BROKEN = f"{CODE}\nclass Broken(Doubling):\n    "


@pytest.mark.parametrize(
    ("code", "task", "reason"),
    [
        (f"{BROKEN}max_batch_size = 0", "own:Broken", "max_batch_size is 0"),
        (f"{BROKEN}max_batch_size = 513", "own:Broken", "is 513; it must be .* from 1 to 512"),
        (f"{BROKEN}example = {{'y': 1}}", "own:Broken", "example is not a valid Request: x: Field req"),
        (f"{BROKEN}Answer = object()", "own:Broken", "Answer is not a type that pydantic supports"),
        (f"{BROKEN}infer = None", "own:Broken", "own:Broken has no infer"),
        (f"{BROKEN}Request = None", "own:Broken", "own:Broken has no Request"),
        (CODE, "own:Nobody", "own has no class 'Nobody'; its classes are .*Doubling"),
        ("from pathlib import Path", "own:Nobody", "own has no class 'Nobody'$"),
        (CODE, "own.py:Doubling", "'own.py:Doubling' names a file; write own:Doubling$"),
        (CODE, "deep/own.py", "'deep/own.py' names a file; write deep.own:Class$"),
        (CODE, "models/own", "'models/own' is not a class in the form module:Class"),
        (CODE, "own", "is not a class"),
        (CODE, "own:CODE", "has no class 'CODE'"),
        (CODE, "nowhere.at.all:Class", "there is no module nowhere"),
        (CODE, "own.deeper:Class", "own.deeper cannot be imported"),
        (CODE, ":Class", "is not a class"),
        ("raise SystemExit(0)", "own:Doubling", "own cannot be imported"),
        ("import nowhere", "own:Doubling", "own cannot be imported"),
        ("1 +", "own:Doubling", "own cannot be imported"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_refused(
    module: Path, tmp_path: Path, code: str, task: str, reason: str
) -> None:
    module.write_text(code)
    with pytest.raises(ConfigurationError, match=reason):
        loaded(described(tmp_path, task))


@pytest.mark.parametrize("as_package", [False, True])
def test_code_in_the_models_folder_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_package: bool
) -> None:
    model = described(tmp_path, "inside.own:Doubling" if as_package else "inside:Doubling")
    folder = model.folder / "inside" if as_package else model.folder
    folder.mkdir(exist_ok=True)
    ran = tmp_path / "ran"
    for name in ("__init__.py", "own.py", "inside.py"):
        (folder / name).write_text(f"open({str(ran)!r}, 'w')\n")
    (tmp_path / "link").symlink_to(model.folder)
    monkeypatch.syspath_prepend(tmp_path / "link")
    with pytest.raises(ConfigurationError, match="is in the model's folder"):
        loaded(model)
    assert not ran.exists()


@pytest.mark.usefixtures("module")
def test_files_that_are_listed_must_be_those_that_were_described(tmp_path: Path) -> None:
    digest = sha256(b"weights").hexdigest()
    model = described(tmp_path, files={"3/weights": digest})
    with pytest.raises(ConfigurationError, match="has no 3/weights"):
        loaded(model)
    (model.folder / "3").mkdir()
    (model.folder / "3" / "weights").write_bytes(b"others")
    with pytest.raises(ConfigurationError, match="does not match its SHA-256"):
        loaded(model)
    (model.folder / "3" / "weights").write_bytes(b"weights")
    loaded(model)


@pytest.mark.usefixtures("module")
def test_a_gpu_is_used_only_where_the_settings_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(cuda_driver, "total_memory", asked.append)
    model = described(tmp_path)
    assert loaded(model, device="auto")[1].device == "cpu"
    backend, info = loaded(model, device="cuda", devices=[1])
    assert info.device == backend._task.device == "cuda:1"
    assert backend.batch_cap == 64
    assert asked == [1]


def test_the_limits_are_those_of_model_json(tmp_path: Path) -> None:
    settings = Settings(max_body_bytes=1000)
    (signature,) = PythonRequests.plan(described(tmp_path), settings)
    assert signature.limits == {"request_bytes": 1000, "answer_bytes": 1024 * 1024}
    (signature,) = PythonRequests.plan(described(tmp_path, limits={"answer_bytes": 5}), settings)
    assert signature.limits == {"request_bytes": 1000, "answer_bytes": 5}
    with pytest.raises(ConfigurationError, match="request_bytes, answer_bytes, not tokens"):
        PythonRequests.plan(described(tmp_path, limits={"tokens": 5}), settings)


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"properties": {"file": {"type": "string", "format": "base64"}}}, {"file": "eHg="}),
        ({"type": "array", "items": {"type": "number"}}, [1.0, 2.0]),
        ({"type": "string"}, "a text"),
    ],
)
def test_an_example_is_shown_as_it_is(tmp_path: Path, schema: Any, example: Any) -> None:
    schemas = {"request": schema, "answer": {}, "example": example}
    model, settings = described(tmp_path), Settings()
    signatures = PythonRequests.plan(model, settings)
    task = PythonRequests(model, settings, signatures, schemas)
    assert task.json_example == example
    document: Any = {"paths": {"/predict": {"post": {"responses": {"200": {}}}}}}
    describe_predict(document, "/predict", task)
    content = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert content["example"] == example


def test_fields_that_are_nested_too_deeply_are_the_clients_error(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    schemas: Any = {"request": {"properties": {"a": {}}}, "answer": {}}
    model, settings = described(tmp_path), Settings()
    task = PythonRequests(model, settings, PythonRequests.plan(model, settings), schemas)
    with pytest.raises(InvalidJsonError, match="Recursion limit"):
        task.preprocess({"a": deep})


@pytest.mark.usefixtures("module")
def test_a_hostile_request_gets_a_short_reason(tmp_path: Path) -> None:
    backend, _ = loaded(described(tmp_path, "own:Lists"))
    wrong = json.dumps(["x"] * (MAX_PROBLEMS + 1)).encode()
    assert asked(backend, wrong) == [
        (Status.NOT_OF_TYPE, f"{MAX_PROBLEMS + 1} values are not of the declared type")
    ]
    status, text = asked(backend, json.dumps(["x"] * MAX_PROBLEMS).encode())[0]
    assert status == Status.NOT_OF_TYPE
    assert "Input should be a valid number" in text
    assert len(text) <= MAX_TEXT
    assert asked(backend, b"[" * 100_000)[0][0] == Status.NOT_JSON
    assert asked(backend, b"[1.0]", b"\xff")[1][0] == Status.NOT_JSON


@given(data=st.binary(min_size=1, max_size=50))
def test_no_bytes_break_a_batch(data: bytes) -> None:
    assume(not re.search(rb"NaN|Infinity|\d[eE]", data))  # numbers that JSON cannot carry back
    (status, _), other = asked(echoing(), data, b'{"any": 1}')
    assert status in (Status.ANSWER, Status.NOT_JSON)
    assert other == (Status.ANSWER, '{"any":1}')


@cache
def echoing() -> PythonBackend:
    described = ModelDescription(name="a", version="1", task=f"{__name__}:Echo", files={})
    return loaded(Model(Path("nowhere"), described))[0]


class Echo:
    """Answers with the request."""

    Request = Answer = Any

    def load(self, folder: Path, device: str) -> None:
        """Nothing."""

    def infer(self, items: list[Any]) -> list[Any]:
        return items


def test_numbers_and_arrays_of_numpy_in_an_answer_of_any_type(module: Path, tmp_path: Path) -> None:
    module.write_text(f"""{CODE}
import typing
import numpy as np

class Anything(Doubling):
    Request, Answer = float, typing.Any
    def infer(self, items):
        return [{{"a": np.float32(x or "nan"), "b": [np.arange(2), np.bool_(1)]}} for x in items]

class Nothing(Anything):
    def infer(self, items):
        return [object()]
""")
    backend, _ = loaded(described(tmp_path, "own:Anything"))
    assert json.loads(asked(backend, b"1.5")[0][1]) == {"a": 1.5, "b": [[0, 1], True]}
    assert asked(backend, b"0")[0][0] == Status.REFUSED  # not a number
    with pytest.raises(TaskError, match="object has no form in JSON"):
        asked(loaded(described(tmp_path, "own:Nothing"))[0], b"1")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return items + items", "infer returned 4 outputs (list) for 2 items"),
        ("return None", "infer returned 0 outputs (NoneType) for 2 items"),
        ("return {'x': items, 'label': items}", "infer returned 0 outputs (dict) for 2 items"),
        ("return {'x': items, 'label': items}.values()", "(dict_values) for 2 items"),
        ("return {'x', 'y'}", "(set) for 2 items"),
        ("return frozenset('xy')", "(frozenset) for 2 items"),
        ("return 'xy'", "(str) for 2 items"),
        ("return b'xy'", "(bytes) for 2 items"),
        ("return bytearray(2)", "(bytearray) for 2 items"),
        ("return memoryview(b'xy')", "(memoryview) for 2 items"),
        ("return __import__('collections').namedtuple('Columns', 'x label')(1, 2)", "(Columns) for 2"),
        ("return items[0]", "for 2 items"),
        ("return [{'y': 1}, 2]", "the answer is not of the type Answer: "),
        ("return [{'x': 1, 'label': 'y' * 100}] * 2", "the limit answer_bytes is 50"),
    ],
)
def test_a_class_that_breaks_its_contract_fails(
    module: Path, tmp_path: Path, body: str, reason: str
) -> None:
    module.write_text(f"{CODE}\nclass Broken(Doubling):\n    def infer(self, items):\n        {body}\n")
    backend, _ = loaded(described(tmp_path, "own:Broken"))
    with pytest.raises(TaskError) as caught:
        asked(backend, b'{"x": 1}', b'{"x": 2}', answer_bytes=50)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "kind", ["list", "tuple", "iter", "__import__('collections').deque", "__import__('numpy').array"]
)
def test_outputs_may_be_any_kind_of_list(module: Path, tmp_path: Path, kind: str) -> None:
    module.write_text(
        f"{CODE}\nclass Plain(Doubling):\n    Request = Answer = float\n"
        f"    def infer(self, items):\n        return {kind}(items)\n"
        "    def postprocess(self, output):\n        return output\n"
    )
    backend, _ = loaded(described(tmp_path, "own:Plain"))
    assert [text for _, text in asked(backend, b"1.5", b"2.5")] == ["1.5", "2.5"]


def test_a_generator_may_refuse_a_request(module: Path, tmp_path: Path) -> None:
    module.write_text(
        f"{CODE}\nclass Yielding(Doubling):\n    def infer(self, items):\n        for item in items:\n"
        "            if item.x < 0:\n                raise ValueError('too small')\n"
        "            yield item\n"
    )
    backend, _ = loaded(described(tmp_path, "own:Yielding"))
    assert asked(backend, b'{"x": -1}') == [(Status.REFUSED, "too small")]
    assert asked(backend, b'{"x": 1}')[0][0] == Status.ANSWER


def test_a_schema_that_is_too_large_is_left_out(module: Path, tmp_path: Path) -> None:
    fields = "\n".join(f"    a_field_of_some_length_{index}: float" for index in range(1000))
    module.write_text(
        f"{CODE}\nfrom pydantic import BaseModel\nclass Large(BaseModel):\n{fields}\n"
        "class Wide(Doubling):\n    Request = Large\n"
    )
    backend, _ = loaded(described(tmp_path, "own:Wide"))
    assert backend.schemas["request"] == {}
    assert backend.schemas["answer"]["title"] == "Point"


@pytest.mark.parametrize(
    ("code", "request_", "said"),
    [
        ("", '{"x": 4}', "2 in a batch, "),
        ("example = {'x': 4}", None, '{"x":8.0,"label":""}'),
        ("", None, "there is no request to send"),
        ("", '{"y": 4}', "the request is refused with 422: x: Field required"),
        ("", "{", "the request is refused with 400: the content: Invalid JSON"),
        ("def preprocess(self, _): raise ValueError('no')", '{"x": 4}', "with 400: no"),
        ("def infer(self, items): return items[:1]", '{"x": 4}', "infer returned 1 outputs"),
        ("def infer(self, items): return items.y", '{"x": 4}', "own.py, line 28)"),
        ("def load(self, folder, _): open(folder / 'w')", None, "FileNotFoundError: "),
        ("def load(self, folder, _): raise SystemExit(0)", None, "SystemExit: 0"),
        ("def load(self, folder, _): raise KeyboardInterrupt", None, "KeyboardInterrupt "),
    ],
)
def test_check_says_what_is_wrong(
    module: Path, capsys: pytest.CaptureFixture[str], code: str, request_: str | None, said: str
) -> None:
    module.write_text(f"{CODE}\nclass Checked(Doubling):\n    {code or 'pass'}\n")
    status = check.run("own:Checked", None, request_)
    captured = capsys.readouterr()
    assert (status == 0) == ("in a batch" in said or said.startswith("{"))
    if status:
        assert said in captured.err
        assert len(captured.err.splitlines()) == 1
    else:
        assert said in captured.out


def test_check_loads_the_folder_that_it_is_given(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = described(tmp_path).folder
    (folder / "model.json").write_text('{"name": "n", "version": "7", "task": "tensor", "files": {}}')
    module.write_text(
        f"{CODE}\nclass Checked(WithExample):\n    def infer(self, items):\n"
        "        return [Point(item.x, self.folder.name) for item in items]\n"
    )
    assert check.run("own:Checked", folder, None) == 0
    assert '"label":"7"' in capsys.readouterr().out
    named = (folder / "model.json").read_text().replace("tensor", "own:Checked")
    (folder / "model.json").write_text(named)
    done = servers.run(sys.executable, "-m", "smallplates", "check", str(folder), env=path_of(module))
    assert (done.returncode, '"label":"7"' in done.stdout) == (0, True), done.stderr
    assert check.run("own:Checked", Path("nowhere"), None) == 1
    assert "no model in nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import threading; threading.Thread(target=time.sleep, args=(600,)).start()", 0, ""),
        ("import multiprocessing as m; m.Process(target=time.sleep, args=(600,)).start()", 0, ""),
        ("import ctypes; ctypes.string_at(0)", 1, 'own.py", line '),
        ("os._exit(0)", 1, "the process of own:Checked ended with exit code 0"),
    ],
)
def test_check_ends_whatever_the_class_does(module: Path, code: str, status: int, said: str) -> None:
    done = checked(module, "load", code)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert ("2 in a batch" in done.stdout) == (status == 0)


def test_check_ends_a_class_that_hangs(module: Path) -> None:
    done = checked(module, "infer", "time.sleep(600)", "--timeout-s=0.5")
    assert done.returncode == 1
    assert done.stderr.startswith("smallplates check: own:Checked was not checked within 0.5 seconds")
    assert done.stderr.count("\n") == 1


def checked(module: Path, method: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Returns what `smallplates check` has said of a class whose `method` first runs `code`.

    Ends when everything that writes to its streams has ended.
    """
    module.write_text(
        f"{CODE}\nimport os, time\nclass Checked(WithExample):\n    def {method}(self, *arguments):\n"
        f"        {code}\n        return super().{method}(*arguments)\n"
    )
    program = (sys.executable, "-m", "smallplates", "check", "own:Checked")
    return servers.run(*program, *options, env=path_of(module))


def path_of(module: Path) -> dict[str, str]:
    """Returns the environment of a process that imports the module."""
    return {"PYTHONPATH": os.pathsep.join([str(module.parent), str(ROOT)])}
