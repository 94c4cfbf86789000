"""Command line: asks a running service about photos, texts or a paragraph, and prints its answers.

`smallplates ask photo.jpg ...`, `--text "..."`, `--question "..." --context-file FILE`, `--question` to
type both, `--embed TEXT...`, `--rerank QUERY TEXT...`, or `--json '{...}'` for the request of any model;
with `--url tcp://HOST:PORT` over the service's TCP port.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

import typer
from typer.core import TyperCommand

from smallplates.client import answers, calls, native
from smallplates.client.aio import AsyncClient
from smallplates.client.calls import RequestOptions
from smallplates.client.client import Client
from smallplates.client.errors import ServingClientError
from smallplates.client.options import DEFAULT_URL
from smallplates.client.photos import content
from smallplates.client.results import Result
from smallplates.client.tcp import TcpClient

Request = tuple[str, Mapping[str, Any] | None]
"""A request's name in the output, and its fields; without fields, the name is an image file's path."""

Line = tuple[str, bool]
"""A line of the output, and whether it has an answer."""

TCP_FIELDS = ("request_id", "ms")  # of the protocol, not of the answer

TYPED = "-"
"""Stands for questions that are typed when they are asked, until one is empty."""

SHOWN_NUMBERS = 3  # of a vector


class Ask(TyperCommand):
    """`smallplates ask`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Lets `--question` without a value mean TYPED."""
        for place, (name, value) in enumerate(pairwise([*args, "--"])):
            if name == "--question" and value.startswith("--"):
                args[place] = f"{name}={TYPED}"
        return super().parse_args(ctx, args)


def main(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Image files; texts with --embed and --rerank.", metavar="INPUT"),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Text to classify; may be repeated.")] = None,
    question: Annotated[
        list[str] | None,
        typer.Option(help="Question about the context; may be repeated. Without a value, you type it."),
    ] = None,
    context_file: Annotated[
        typer.FileText | None,
        typer.Option(help="Context: a text file in UTF-8; - reads stdin. By default, you type it."),
    ] = None,
    embed: Annotated[bool, typer.Option("--embed", help="Compute the vectors of the texts.")] = False,
    rerank: Annotated[
        str | None,
        typer.Option(help="Sort the texts by this query.", metavar="QUERY", show_default=False),
    ] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--json", help="Request as a JSON object; may be repeated.")
    ] = None,
    url: Annotated[
        str, typer.Option(help="Base URL of the service, or tcp://HOST:PORT.", envvar="SERVING_URL")
    ] = DEFAULT_URL,
    api_key: Annotated[
        str | None, typer.Option(help="The service's API key.", envvar="SERVING_API_KEY")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; by default the default model.")
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Classes, answers or texts to print for each request; by default 1, with --rerank all.",
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, help="Timeout per request in seconds, retries included.")
    ] = 30.0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Photos to send at the same time.")
    ] = 4,
) -> None:
    """Sends requests to a running service. The exit code is 1 if any request fails."""
    queries = [] if rerank is None else [rerank]
    photos = [] if embed or queries else inputs
    if (
        sum(map(bool, (photos, text, question, fields, embed, queries))) != 1
        or (context_file and not question)
        or bool(inputs) != bool(photos or embed or queries)
    ):
        raise typer.BadParameter(
            "pass PHOTO..., --text, --question, also with --context-file, --embed TEXT..., "
            "--rerank QUERY TEXT..., or --json"
        )
    if photos or text or question:
        top_k = top_k or 1
    options: RequestOptions = {} if top_k is None or fields or embed else {"top_k": top_k}
    if model is not None:
        options["model"] = model
    try:
        context = context_file.read() if context_file else None
        requests: Iterable[Request] = [
            *((each, {"text": each}) for each in (inputs if embed else text) or ()),
            *((query, {"query": query, "texts": inputs}) for query in queries),
            *((each, json_object(each)) for each in fields or ()),
        ]
        if question:
            requests = about(context, question)
        if url.startswith("tcp://"):
            requests = chain(((photo, None) for photo in photos or ()), requests)
            lines = over_tcp(address(url), api_key, timeout_s, requests, options)
        else:
            client = Client(url, api_key=api_key, timeout_s=timeout_s, connections=concurrency)
            lines = over_http(client, photos or (), requests, options, concurrency)
    except ValueError as error:
        reason = "--context-file is not text in UTF-8" if isinstance(error, UnicodeError) else str(error)
        raise typer.BadParameter(reason) from error
    failures = 0
    for line, is_answer in lines:
        typer.echo(line, err=not is_answer)
        failures += not is_answer
    raise typer.Exit(int(failures > 0))


def about(context: str | None, questions: Sequence[str]) -> Iterator[Request]:
    """Yields questions about a context; asks for what is missing, see TYPED."""
    if context is None:
        context = typed("Context")
    more = iter(lambda: typed("Question"), "")
    for question in chain.from_iterable(more if each == TYPED else [each] for each in questions):
        yield question, {"question": question, "context": context}


def typed(name: str) -> str:
    """Asks for a line; returns an empty one at the end of the input."""
    typer.echo(f"{name}: ", nl=False, err=True)
    return sys.stdin.readline().strip()


def json_object(text: str) -> dict[str, Any]:
    """Returns the fields of a request. Raises ValueError for what is not a JSON object."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"--json needs a JSON object, not {text}")
    return fields


def address(url: str) -> SplitResult:
    """Returns the parts of a URL with host and port. Raises ValueError if one is missing."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port is None:
        raise ValueError(f"{url!r} must have the form tcp://host:port")
    return parts


def over_http(
    client: Client,
    photos: Sequence[str],
    requests: Iterable[Request],
    options: RequestOptions,
    concurrency: int,
) -> Iterator[Line]:
    """Sends several photos at the same time, and other requests one after the other."""
    with client:
        given = [(photo, None) for photo in photos]
        results = (client.start(result_of(client.asynchronous, each, options)) for each in given)
        sent = deque(islice(results, concurrency))
        for photo in given:
            result = sent.popleft().result()
            sent.extend(islice(results, 1))
            yield http_line(photo, result, options)
        for request in requests:
            result = client.start(result_of(client.asynchronous, request, options)).result()
            yield http_line(request, result, options)


async def result_of(
    client: AsyncClient, request: Request, options: RequestOptions
) -> Result | ServingClientError:
    """Returns the answer to a request, of any shape, or its error."""
    name, fields = request
    try:
        if fields is not None:
            return await client.call(fields, **options)
        path = native.predict_path(options)
        call = calls.post(path, await content(name), "application/octet-stream")
        return await client.send(call, answers.result, options)
    except ServingClientError as error:
        return error


def http_line(request: Request, result: Result | ServingClientError, options: RequestOptions) -> Line:
    """Returns the output of one request: `photo.jpg: Soup 92.7 % (8.4 ms)`."""
    if isinstance(result, Result):
        return output(request, result.body, options, result.latency_s), True
    return f"{request[0]}: {result}{cure(request, result.status, result.code, options)}", False


def cure(request: Request, status: int | None, code: object, options: RequestOptions) -> str:
    """Returns the option that a failed request may lack; empty if there is none."""
    if status == 401:
        return "; pass the key with --api-key"
    is_photo = request[1] is None
    is_of_another_task = status in (415, 422, 501) or (is_photo and code == "invalid_text")
    is_default = is_of_another_task and "model" not in options
    return "; for another model than the default, pass --model" if is_default else ""


def output(request: Request, body: Any, options: RequestOptions, seconds: float) -> str:  # Any: JSON
    """Returns the answer to a request; a ranking has a line for each text."""
    (name, fields), time_taken = request, f"({1000 * seconds:.1f} ms)"
    try:
        if "ranking" in body:
            texts = (fields or {})["texts"]
            ranks = [f"{rank['score']:8.3f}  {texts[rank['index']]}" for rank in body["ranking"]]
            return "\n".join((f"{name} {time_taken}", *ranks))
    except (LookupError, TypeError, ValueError):
        pass
    return f"{name}: {in_words(body, options)} {time_taken}"


def over_tcp(
    server: SplitResult,
    key: str | None,
    timeout_s: float,
    requests: Iterable[Request],
    options: RequestOptions,
) -> Iterator[Line]:
    """Sends the requests one after the other; who types them may outlast an idle connection."""
    try:
        for request in requests:
            with TcpClient(server.hostname or "", server.port or 0, key, timeout_s) as client:
                line = tcp_line(client, request, options)
            yield line
    except OSError as error:
        yield f"{server.netloc}: {error}", False


def tcp_line(client: TcpClient, request: Request, options: RequestOptions) -> Line:
    """Returns the output of one request. Raises OSError of the connection."""
    name, fields = request
    try:
        body = Path(name).read_bytes() if fields is None else json.dumps(fields).encode()
    except OSError as error:
        return f"{name}: {error.strerror}", False
    start = time.perf_counter()
    content_type = None if fields is None else "application/json"
    model, top_k = options.get("model"), options.get("top_k")
    answer = client.predict(body, model=model, top_k=top_k, content_type=content_type)
    seconds = time.perf_counter() - start
    if answer.status != 200:
        words = f"{answer.content.get('detail')} ({answer.status})"
        words += cure(request, answer.status, answer.content.get("code"), options)
        return f"{name}: {words}", False
    said = {name: value for name, value in answer.content.items() if name not in TCP_FIELDS}
    return output(request, said, options, seconds), True


def in_words(body: Any, options: RequestOptions) -> str:  # Any: JSON
    """Returns the candidates of an answer, if some were asked for, or a vector: `Soup 92.7 %`.

    Of any other answer it is the JSON.
    """
    try:
        if "embedding" in body:
            first = ", ".join(f"{number:.4f}" for number in body["embedding"][:SHOWN_NUMBERS])
            return f"{len(body['embedding'])} numbers, {first} ..."
        candidates = ", ".join(map(candidate_in_words, body["top"] if "top_k" in options else ()))
    except (AttributeError, LookupError, TypeError, ValueError):
        candidates = ""  # a Python task's answer has any shape
    return candidates or json.dumps(body, ensure_ascii=False)


def candidate_in_words(candidate: Mapping[str, Any]) -> str:
    """Returns a class or an answer with its score, in percent."""
    name = candidate.get("label", candidate.get("answer")) or "no answer"
    return f"{name} {100 * candidate.get('probability', candidate.get('score')):.1f} %"


app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command(cls=Ask)(main)
