"""The same photo, texts or rows, pipeline, model, cores and load on this service and on others.

`python -m benchmarks compare` sets up every peer in a virtual environment of its own, runs all of them
in turn, several rounds, and prints medians, ranges, and ratios to this service. wrk must be installed.
The servers are listed in `servers.py`, started by `running.py`, and printed by `table.py`.
"""

import io
import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache, partial
from itertools import cycle, product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image
from tqdm import tqdm

from benchmarks import environments, model, table, table_model, text_limit, text_model
from benchmarks.limit import Work, rate
from benchmarks.peers.common import GRAPHS, Classify, peer
from benchmarks.peers.table import ClassifyRows
from benchmarks.peers.text import ClassifyTexts, EmbedTexts
from benchmarks.running import Running, post, running
from benchmarks.servers import (
    EMBEDDING_SERVERS,
    SERVERS,
    TABLE_SERVERS,
    TEXT_SERVERS,
    Pipeline,
    Server,
    prediction,
)
from benchmarks.usage import cpu_seconds, memory_mb, tree
from fastapi_onnx.openvino_session import openvino_objection
from smallplates.cli.load import report, wrk
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers
from smallplates.models.folder import Model
from smallplates.settings import ROOT
from smallplates.system import cpus

PHOTO = ROOT / "flask_app" / "static" / "samples" / "bread.jpg"
TEXTS = 1000
WARM_UP_S = 1
TOLERANCE = 1e-3
MIN_COSINE = 0.999


class Task(StrEnum):
    """What the servers are sent."""

    IMAGE = "image"
    TEXT = "text"
    EMBED = "embed"
    TABLE = "table"


@dataclass(frozen=True)
class Load:
    """Connections that send requests in a closed loop."""

    connections: int
    texts: int = 1  # or images, of a request

    def __str__(self) -> str:
        each = f", {self.texts} texts each" if self.texts > 1 else ""
        return f"{self.connections} connections{each}"

    def bodies(self, server: Server, contents: Sequence[str]) -> list[bytes]:
        """Returns the requests, which are sent in turn."""
        starts = range(0, len(contents) - self.texts + 1, self.texts)
        lists = (contents[start : start + self.texts] for start in starts)
        return [
            json.dumps(server.body(list(each) if self.texts > 1 else each[0])).encode() for each in lists
        ]


LOADS_OF_EMBEDDINGS = (Load(4, 32),)
"""Loads beside those of one text a request."""


ENSURE = {
    Task.TEXT: (text_model.ensure, ClassifyTexts),
    Task.EMBED: (text_model.ensure_embedding, EmbedTexts),
}
"""Task with texts -> functions that make its model, and that compute it in this process."""

InProcess = Callable[[int, float, str], float]
"""Returns the requests a second without HTTP of so many threads, for so many seconds, in a precision."""

Start = Callable[[Server, bytes], AbstractContextManager[Running]]


def in_process(model_dir: Path, base64: str, threads: int, seconds: float, precision: str) -> float:
    """Answers a second of `threads` threads that decode, resize and infer in a loop: no HTTP."""

    def work() -> Work:
        classify = Classify(str(model_dir), "shared", precision=precision)
        return lambda: len([classify.text(base64)])

    return rate([work() for _ in range(threads)], seconds)


@dataclass(frozen=True)
class Probe:
    """Input that every server must answer as the same pipeline does in this process."""

    model_dir: Path
    pipeline: str  # of the other servers
    content: str

    @classmethod
    def of_photo(cls, model_dir: Path, pipeline: str, photo: bytes) -> "Probe":
        """Returns the photo in the size that the model needs; so no server resizes it in its own way.

        Raises SystemExit if this project's decoder and graph differ from Pillow, NumPy and plain graph.
        """
        resize = Model.read(model_dir).description.pipeline.resize
        size = (resize, resize) if isinstance(resize, int) else resize[::-1]
        file = io.BytesIO()
        Image.open(io.BytesIO(photo)).convert("RGB").resize(size).save(file, "PNG")
        probe = cls(model_dir, pipeline, b64encode(file.getvalue()).decode())
        require_same("the decoder", probe.answer("shared", "fp32"), probe.answer("plain", "fp32"))
        return probe

    @cache  # noqa: B019 a command has one probe
    def answer(self, pipeline: str, precision: str) -> tuple[str, float]:
        """Returns the class and the probability."""
        answer = peer(str(self.model_dir), pipeline, precision).text(self.content)
        return answer["prediction"], answer["probability"]

    def check(self, server: Server, url: str) -> None:
        """Raises SystemExit if a server differs."""
        is_ours = server.environment is None and self.pipeline != "text"
        expected = self.answer("shared" if is_ours else self.pipeline, server.precision)
        answer = prediction(post(url, json.dumps(server.body(self.content)).encode()))
        require_same(server.name, answer, expected)


def require_same(name: str, answer: tuple[str, float], expected: tuple[str, float]) -> None:
    """Raises SystemExit if two answers have other classes, or probabilities that differ."""
    if answer[0] != expected[0] or abs(answer[1] - expected[1]) > TOLERANCE:
        raise SystemExit(f"compare: {name} answers {answer}, but the same pipeline alone {expected}")


@dataclass(frozen=True)
class VectorProbe:
    """Text whose vector every server must answer as this process does."""

    model_dir: Path
    content: str

    def check(self, server: Server, url: str) -> None:
        """Raises SystemExit if a server differs."""
        ((expected,), answer) = (
            EmbedTexts(str(self.model_dir), server.precision)([self.content]),
            json.loads(post(url, json.dumps(server.body(self.content)).encode())),
        )
        vector = np.frombuffer(b64decode(answer["data"][0]["embedding"]), "<f4")
        if (cosine := float(vector @ expected)) < MIN_COSINE:
            raise SystemExit(f"compare: {server.name} answers a vector whose cosine is {cosine:.5f}")


@dataclass(frozen=True)
class RowProbe:
    """Row that every server must answer as this process does."""

    model_dir: Path
    content: str

    def check(self, server: Server, url: str) -> None:
        """Raises SystemExit if a server differs."""
        expected = ClassifyRows(str(self.model_dir)).infer(np.array([json.loads(self.content)], "f4"))
        answer = json.loads(post(url, json.dumps(server.body(self.content)).encode()))
        if not np.allclose(answer["outputs"][0]["data"], expected[0], atol=TOLERANCE):
            raise SystemExit(f"compare: {server.name} answers {answer}, not {expected[0]}")


AnyProbe = Probe | VectorProbe | RowProbe
PROBES: dict[Task, Callable[[Path, str], AnyProbe]] = {
    Task.TEXT: lambda model_dir, text: Probe(model_dir, "text", text),
    Task.EMBED: VectorProbe,
    Task.TABLE: RowProbe,
}


def rows_in_process(path: Path, contents: Sequence[str], threads: int, seconds: float, _: str) -> float:
    """Returns the rows a second of `threads` threads that compute one row after another."""
    rows = np.array([json.loads(content) for content in contents], np.float32)

    def work() -> Work:
        classify, turns = ClassifyRows(str(path)), cycle(range(len(rows)))
        return lambda: len(classify.infer(rows[(at := next(turns)) : at + 1]))

    return rate([work() for _ in range(threads)], seconds)


def measure_server(
    server: Server,
    contents: Sequence[str],
    sizes: Sequence[Load],
    seconds: float,
    start: Start,
    probe: AnyProbe | None = None,
) -> table.Loads:
    """Returns the figures of one round: load -> one row. Raises SystemExit if the probe differs.

    `contents` are texts, or images in base64, which are sent in turn.
    """
    bodies = Load(1).bodies(server, contents)
    loads: table.Loads = {}
    with start(server, bodies[0]) as served:
        if probe:
            probe.check(server, served.url)
        wrk.run(served.url, bodies, 4, WARM_UP_S)
        for size in sizes:
            loads[str(size)] = [measure_load(served, size.bodies(server, contents), size, seconds)]
    return loads


def measure_load(served: Running, bodies: list[bytes], size: Load, seconds: float) -> table.Row:
    """Returns the figures of wrk, and of the server: CPU time for a thousand answers, memory after.

    An answer is that to an image, a text or a row.
    """
    before = cpu_seconds(tree(served.keeper_pid))
    load = wrk.run(served.url, bodies, size.connections, seconds)
    after = cpu_seconds(tree(served.keeper_pid))
    return {
        **asdict(load),
        "per_second": load.per_second * size.texts,
        "cpu_s_per_1000": 1000 * (after - before) / max(1, load.requests * size.texts),
        "memory_mb": memory_mb(served.processes()),
    }


def measure(
    contents: Sequence[str],
    without_http: InProcess,
    servers: Sequence[Server],
    rounds: int,
    seconds: float,
    start: Start,
    sizes: Sequence[Load] = (Load(1), Load(16), Load(64)),
    probe: AnyProbe | None = None,
) -> table.Results:
    """Runs every server once in every round; in process, each precision is on its own."""
    results: table.Results = {}
    precisions = dict.fromkeys(server.precision for server in servers)
    with tqdm(total=rounds * len(servers), desc="servers", mininterval=1) as progress:
        for _ in range(rounds):
            for precision, threads in product(precisions, sorted({1, cpus.usable()})):
                row = {"per_second": without_http(threads, seconds, precision)}
                name = table.IN_PROCESS + table.ENDS[precision]
                table.keep(results, name, {f"{threads} threads": [row]})
            for server in servers:
                loads = measure_server(server, contents, sizes, seconds, start, probe)
                table.keep(results, server.name, loads)
                progress.update()
    return results


def chosen(
    names: Sequence[str], pipeline: Pipeline, int8: bool, known: Sequence[Server] = SERVERS
) -> list[Server]:
    """The servers with these names, in the table's order; without names, those that need not be named.

    `int8`: whether the model has a quantised graph. Raises BadParameter.
    """
    unknown = set(names) - {server.name for server in known}
    if unknown:
        listed = ", ".join(repr(server.name) for server in known)
        raise typer.BadParameter(f"no server named {', '.join(sorted(unknown))}; there are {listed}")
    servers = [s for s in known if s.name in names or not (names or s.by_name_only)]
    if objection := openvino_objection("bf16"):
        if any(server.name in names and server.precision == "bf16" for server in servers):
            raise typer.BadParameter(objection)
        servers = [server for server in servers if server.precision != "bf16"]
    if not int8:
        without = [server for server in servers if server.precision != "int8"]
        if names and without != servers:
            raise typer.BadParameter(f"the model has no {GRAPHS['int8']}")
        servers = without
    return [server for server in servers if pipeline is Pipeline.PLAIN or not server.plain_only]


def prepared(task: Task, model_dir: Path | None, photo: Path) -> tuple[Path, Sequence[str], InProcess]:
    """Returns the model's path, what is sent in turn, and what computes it in this process."""
    if task is Task.IMAGE:
        served = model.ensure(model_dir or model.FOLDER).resolve()
        contents = [b64encode(photo.read_bytes()).decode()]
        return served, contents, partial(in_process, served, contents[0])
    if task is Task.TABLE:
        served = (model_dir or table_model.ensure()).resolve()
        contents = table_model.rows(TEXTS)
        return served, contents, partial(rows_in_process, served, contents)
    ensure, kind = ENSURE[task]
    served = (model_dir or ensure()).resolve()
    contents = text_model.texts(TEXTS)
    return served, contents, partial(text_limit.in_process, kind, served, contents)


def main(
    task: Annotated[
        Task,
        typer.Option(help="What is sent: a photo, rows, or texts to classify or to embed."),
    ] = Task.IMAGE,
    photo: Annotated[Path, typer.Option(help="A JPEG, sent as base64 JSON.")] = PHOTO,
    model_dir: Annotated[
        Path | None,
        typer.Option("--model", help="A model's folder; by default one in runs/, made where missing."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[int, typer.Option(min=1, help="Per load, server and round.")] = 5,
    connections: Annotated[str, typer.Option(help="Loads: numbers of connections.")] = "1,16,64",
    only: Annotated[list[str] | None, typer.Option(help="Names of servers; may be repeated.")] = None,
    environments_dir: Annotated[
        Path, typer.Option("--environments", help="Where the peers are set up.")
    ] = Path("runs/peers"),
    pipeline: Annotated[
        Pipeline, typer.Option(help="What the peers run: a tutorial's handler, or this project's.")
    ] = Pipeline.PLAIN,
    json_file: Annotated[Path | None, typer.Option("--json", help="Keeps all figures.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Keeps all figures.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PLOT.png and PLOT.svg.")] = None,
) -> None:
    """Runs this service and the others in turn; prints medians, ranges and ratios."""
    if shutil.which("wrk") is None:
        raise typer.BadParameter("wrk must be installed; it is a package of most Linux systems")
    folder, sizes = environments_dir.resolve(), [Load(count) for count in numbers(connections)]
    sizes += LOADS_OF_EMBEDDINGS if task is Task.EMBED else ()
    served, contents, without_http = prepared(task, model_dir, photo)
    known = {
        Task.IMAGE: SERVERS,
        Task.TEXT: TEXT_SERVERS,
        Task.EMBED: EMBEDDING_SERVERS,
        Task.TABLE: TABLE_SERVERS,
    }[task]
    servers = chosen(only or [], pipeline, Model.read(served).has(GRAPHS["int8"]), known)
    versions: dict[str, str] = {}
    for server in servers:
        if server.environment:
            versions |= environments.versions(server.environment, folder)

    def start(server: Server, body: bytes) -> AbstractContextManager[Running]:
        return running(server, served, folder, pipeline, body)

    if task is Task.IMAGE:
        probe: AnyProbe = Probe.of_photo(served, pipeline.value, photo.read_bytes())
    else:
        probe = PROBES[task](served, contents[0])
    results = measure(contents, without_http, servers, rounds, seconds, start, sizes, probe)
    report.print_table("compare", table.lines(results), table.notes(results))
    what = f"--photo {photo.name} --pipeline {pipeline.value}"
    what = what if task is Task.IMAGE else f"--task {task.value}"
    command = (
        f"python -m benchmarks compare {what} --model {served.name} --rounds {rounds} "
        f"--seconds {seconds} --connections {connections}"
    )
    command += "".join(f" --only '{name}'" for name in only or [])
    if json_file:
        write_results(json_file, command, results, versions)
    if csv_file:
        table.write_csv(csv_file, results)
    if plot:
        names = list(results[servers[0].name])
        report.save_picture(plot, *(partial(table.plot_load, results=results, load=n) for n in names))


if __name__ == "__main__":
    typer.run(main)
