"""Command line: asks a running service about photos, texts or a paragraph, and prints its answers.

`smallplates ask photo.jpg ...`, `--text "..."`, `--question "..." --context-file FILE`, or `--json
'{...}'` for the request of any model; with `--url tcp://HOST:PORT` over the service's TCP port.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from smallplates.client.calls import RequestOptions
from smallplates.client.client import Client
from smallplates.client.errors import ServingClientError
from smallplates.client.options import DEFAULT_URL
from smallplates.client.results import Prediction, QuestionAnswer, Result
from smallplates.client.tcp import TcpClient

Asked = tuple[str, Result | ServingClientError | None]
Photos = Annotated[list[str] | None, typer.Argument(help="Image files.", metavar="PHOTO...")]
Texts = Annotated[list[str] | None, typer.Option(help="Text to classify; may be repeated.")]
Questions = Annotated[
    list[str] | None, typer.Option(help="Question about the context; may be repeated.")
]
ContextFile = Annotated[
    typer.FileText | None,
    typer.Option(help="Context of the questions: a text file in UTF-8; - reads stdin."),
]
Fields = Annotated[
    list[str] | None, typer.Option("--json", help="Request as a JSON object; may be repeated.")
]
Url = Annotated[
    str, typer.Option(help="Base URL of the service, or tcp://HOST:PORT.", envvar="SERVING_URL")
]
Key = Annotated[str | None, typer.Option(help="The service's API key.", envvar="SERVING_API_KEY")]
Model = Annotated[str | None, typer.Option(help="Name of the model; by default the default model.")]
TopK = Annotated[int, typer.Option(min=1, help="Classes or answers to print for each request.")]
Timeout = Annotated[
    float, typer.Option(min=0.001, help="Timeout per request in seconds, retries included.")
]
Concurrency = Annotated[int, typer.Option(min=1, max=256, help="Photos to send at the same time.")]


def main(
    photos: Photos = None,
    text: Texts = None,
    question: Questions = None,
    context_file: ContextFile = None,
    fields: Fields = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    model: Model = None,
    top_k: TopK = 1,
    timeout_s: Timeout = 30.0,
    concurrency: Concurrency = 4,
) -> None:
    """Sends requests to a running service. The exit code is 1 if any request fails."""
    if sum(map(bool, (photos, text, question, fields))) != 1 or bool(question) != bool(context_file):
        raise typer.BadParameter("pass PHOTO..., --text, --question with --context-file, or --json")
    try:
        requests = {text: parsed(text) for text in fields or ()}
        context = context_file.read() if context_file else ""
        if url.startswith("tcp://"):
            asked_for = [
                *bodies(photos or [], text or [], question or [], context),
                *((text, text.encode) for text in requests),
            ]
            kind = None if photos else "application/json"
            raise typer.Exit(int(over_tcp(url, api_key, model, top_k, timeout_s, asked_for, kind)))
        client = Client(url, api_key=api_key, timeout_s=timeout_s, connections=concurrency)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    failed = False
    options: RequestOptions = {"top_k": top_k} if model is None else {"top_k": top_k, "model": model}
    with client:
        if photos:
            items = client.predict_many(photos, concurrency=concurrency, **options)
            results: Iterator[Asked] = (
                (str(item.photo), item.prediction or item.error) for item in items
            )
        elif text:
            results = each_of(text, partial(client.classify_text, **options))
        elif requests:
            del options["top_k"]  # of classes and answers
            results = each_of(requests, lambda text: client.call(requests[text], **options))
        else:
            results = each_of(question or [], partial(client.answer, context=context, **options))
        for asked in results:
            is_error = isinstance(asked[1], ServingClientError)
            failed |= is_error
            typer.echo(line(*asked), err=is_error)
    raise typer.Exit(int(failed))


def parsed(text: str) -> dict[str, Any]:
    """Returns the fields of a request. Raises ValueError for what is not a JSON object."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"--json needs a JSON object, not {text}")
    return fields


def each_of(texts: Iterable[str], ask: Callable[[str], Result]) -> Iterator[Asked]:
    """Asks one after the other; yields the error of what was not answered."""
    for text in texts:
        try:
            yield text, ask(text)
        except ServingClientError as error:
            yield text, error


def bodies(
    photos: list[str], texts: list[str], questions: list[str], context: str
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yields a name for each request, and what makes its body."""
    yield from ((photo, Path(photo).read_bytes) for photo in photos)
    yield from ((text, partial(as_json, text=text)) for text in texts)
    yield from (
        (question, partial(as_json, question=question, context=context)) for question in questions
    )


def as_json(**fields: str) -> bytes:
    """Returns the fields as a JSON object."""
    return json.dumps(fields).encode()


def over_tcp(
    url: str,
    key: str | None,
    model: str | None,
    top_k: int,
    timeout_s: float,
    asked: Iterable[tuple[str, Callable[[], bytes]]],
    content_type: str | None,
) -> bool:
    """Asks one after the other on one connection, and prints the answers; returns whether one failed.

    `content_type` is that of all bodies; None: files. Raises ValueError for a URL without host or port.
    """
    parts = urlsplit(url)
    if not parts.hostname or parts.port is None:
        raise ValueError(f"{url!r} must have the form tcp://host:port")
    failed = False
    try:
        with TcpClient(parts.hostname, parts.port, key, timeout_s) as client:
            for name, body in asked:
                words, is_answer = tcp_line(client, body, model, top_k, content_type)
                typer.echo(f"{name}: {words}", err=not is_answer)
                failed |= not is_answer
    except OSError as error:
        typer.echo(f"{parts.netloc}: {error}", err=True)
        return True
    return failed


def tcp_line(
    client: TcpClient,
    body: Callable[[], bytes],
    model: str | None,
    top_k: int,
    content_type: str | None,
) -> tuple[str, bool]:
    """Returns the line for a request, and whether it was answered. Raises OSError of the connection."""
    try:
        content = body()
    except OSError as error:
        return str(error.strerror), False
    started = time.perf_counter()
    answer = client.predict(content, model=model, top_k=top_k, content_type=content_type)
    ms = (time.perf_counter() - started) * 1000
    if answer.status != 200:
        return f"{answer.content.get('detail')} ({answer.status})", False
    scores = [
        f"{candidate.get('label', candidate.get('answer')) or 'no answer'} "
        f"{100 * candidate.get('probability', candidate.get('score', 0)):.1f} %"
        for candidate in answer.content.get("top", ())
    ]
    left_out = ("request_id", "ms")
    other = {name: value for name, value in answer.content.items() if name not in left_out}
    return f"{', '.join(scores) or json.dumps(other, ensure_ascii=False)} ({ms:.1f} ms)", True


def line(asked: str, result: Result | ServingClientError | None) -> str:
    """Formats one result: `photo.jpg: Soup 92.7 % (8.4 ms)`."""
    if isinstance(result, Prediction):
        scores = [f"{score.label} {100 * score.probability:.1f} %" for score in result.top]
    elif isinstance(result, QuestionAnswer):
        scores = [f"{span.answer or 'no answer'} {100 * span.score:.1f} %" for span in result.top]
    elif isinstance(result, Result):
        scores = [json.dumps(result.body, ensure_ascii=False)]
    else:
        return f"{asked}: {result}"
    return f"{asked}: {', '.join(scores)} ({result.latency_s * 1000:.1f} ms)"


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(main)
