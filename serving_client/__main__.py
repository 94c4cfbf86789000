"""Command line: asks a running service about photos, texts or a paragraph, and prints its answers.

`python -m serving_client photo.jpg ...`, `--text "..."`, or `--question "..." --context-file FILE`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import typer

from serving_client.client import Client
from serving_client.errors import ServingClientError
from serving_client.options import DEFAULT_URL
from serving_client.results import Prediction, QuestionAnswer

Asked = tuple[str, Prediction | QuestionAnswer | ServingClientError | None]
Photos = Annotated[list[str] | None, typer.Argument(help="Paths of pictures.", metavar="PHOTO...")]
Texts = Annotated[list[str] | None, typer.Option(help="Text to classify; may be repeated.")]
Questions = Annotated[list[str] | None, typer.Option(help="About the context; may be repeated.")]
ContextFile = Annotated[
    typer.FileText | None, typer.Option(help="Text in UTF-8 that has the answers; - is stdin.")
]
Url = Annotated[str, typer.Option(help="Base URL of the service.", envvar="SERVING_URL")]
Key = Annotated[str | None, typer.Option(help="The service's API key.", envvar="SERVING_API_KEY")]
TopK = Annotated[int, typer.Option(min=1, help="How many classes or answers to print for each.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds for each, all tries together.")]
Concurrency = Annotated[int, typer.Option(min=1, max=256, help="Photos under way at the same time.")]


def main(
    photos: Photos = None,
    text: Texts = None,
    question: Questions = None,
    context_file: ContextFile = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    top_k: TopK = 1,
    timeout_s: Timeout = 30.0,
    concurrency: Concurrency = 4,
) -> None:
    """Asks a running service. Ends with 1 when something was not answered."""
    if sum(map(bool, (photos, text, question))) != 1 or bool(question) != bool(context_file):
        raise typer.BadParameter("give PHOTO..., or --text, or --question with --context-file")
    try:
        context = context_file.read() if context_file else ""
        client = Client(url, api_key=api_key, timeout_s=timeout_s, connections=concurrency)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    failed = False
    with client:
        if photos:
            items = client.predict_many(photos, concurrency=concurrency, top_k=top_k)
            found: Iterator[Asked] = ((str(each.photo), each.prediction or each.error) for each in items)
        elif text:
            found = each_of(text, partial(client.classify_text, top_k=top_k))
        else:
            found = each_of(question or [], partial(client.answer, context=context, top_k=top_k))
        for asked in found:
            is_error = isinstance(asked[1], ServingClientError)
            failed |= is_error
            typer.echo(line(*asked), err=is_error)
    raise typer.Exit(int(failed))


def each_of(texts: list[str], ask: Callable[[str], Prediction | QuestionAnswer]) -> Iterator[Asked]:
    """Asks one after the other; yields the error of what was not answered."""
    for text in texts:
        try:
            yield text, ask(text)
        except ServingClientError as error:
            yield text, error


def line(asked: str, found: Prediction | QuestionAnswer | ServingClientError | None) -> str:
    """Formats one result: `photo.jpg: Soup 92.7 % (8.4 ms)`."""
    if isinstance(found, Prediction):
        scores = [f"{score.label} {100 * score.probability:.1f} %" for score in found.top]
    elif isinstance(found, QuestionAnswer):
        scores = [f"{span.answer or 'no answer'} {100 * span.score:.1f} %" for span in found.top]
    else:
        return f"{asked}: {found}"
    return f"{asked}: {', '.join(scores)} ({found.latency_s * 1000:.1f} ms)"


if __name__ == "__main__":
    typer.run(main)
