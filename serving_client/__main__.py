"""Command line: `python -m serving_client photo.jpg ...` prints class, probability and time."""

from typing import Annotated

import typer

from serving_client.client import Client
from serving_client.options import DEFAULT_URL
from serving_client.results import BatchItem

Url = Annotated[str, typer.Option(help="Base URL of the service.", envvar="SERVING_URL")]
Key = Annotated[str | None, typer.Option(help="The service's API key.", envvar="SERVING_API_KEY")]
TopK = Annotated[int, typer.Option(min=1, help="How many classes to print for each photo.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds for each photo, all tries together.")]
Concurrency = Annotated[int, typer.Option(min=1, max=256, help="Photos under way at the same time.")]


def main(
    photos: Annotated[list[str], typer.Argument(help="Paths of pictures.", metavar="PHOTO...")],
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    top_k: TopK = 1,
    timeout_s: Timeout = 30.0,
    concurrency: Concurrency = 4,
) -> None:
    """Asks a running service what is on photos. Ends with 1 when one of them was not answered."""
    try:
        client = Client(url, api_key=api_key, timeout_s=timeout_s, connections=concurrency)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    failed = False
    with client:
        for item in client.predict_many(photos, concurrency=concurrency, top_k=top_k):
            failed |= item.error is not None
            typer.echo(line(item), err=item.error is not None)
    raise typer.Exit(int(failed))


def line(item: BatchItem) -> str:
    """Formats one result: `photo.jpg: Soup 92.7 % (8.4 ms)`."""
    name = str(item.photo)
    if item.prediction is None:
        return f"{name}: {item.error}"
    scores = ", ".join(f"{score.label} {100 * score.probability:.1f} %" for score in item.prediction.top)
    return f"{name}: {scores} ({item.prediction.latency_s * 1000:.1f} ms)"


if __name__ == "__main__":
    typer.run(main)
