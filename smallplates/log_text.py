"""Log lines for people, where `log_format` is `console`: time, model or status, text."""

import os
import time
from collections.abc import Callable, MutableMapping
from typing import Any

from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, plain_traceback
from structlog.typing import Processor

LABEL = 10  # characters of a model's name or a status; longer names shift their line
DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"
Event = MutableMapping[str, Any]  # Any: as in structlog


def processors(fd: int) -> list[Processor]:
    """Returns what turns an event into a line, in colours if `fd` is a terminal."""
    dim, bold, reset = (DIM, BOLD, RESET) if os.isatty(fd) else ("", "", "")

    def column(key: str, key_style: str | None = None, style: str = "", width: int = 0) -> Column:
        return Column(key, KeyValueColumnFormatter(key_style, style, reset, str, width))

    renderer = ConsoleRenderer(
        columns=[
            column("timestamp", style=dim),
            column("label", style=bold, width=LABEL),
            column("event"),
            column("", key_style=dim),
        ],
        exception_formatter=plain_traceback,  # without local variables, which may contain keys
    )
    return [stamp, in_words, escape_values, renderer, encode]


def stamp(_logger: object, _method: str, event: Event) -> Event:
    """Adds the local time; datetime's raises ValueError for a TZ that is a day or more off."""
    return {**event, "timestamp": time.strftime("%H:%M:%S")}


def in_words(_logger: object, _method: str, event: Event) -> Event:
    """Puts an event into words, as far as there are some, and leaves out fields that say nothing."""
    level, timestamp = event.pop("level", "info"), event.pop("timestamp", "")
    said: Event = {key: value for key, value in event.items() if value}
    if words := WORDS.get(said["event"]):
        said = words(said)
    label = said.pop("label", None) or said.pop("model", "")
    text = said.pop("event") if level in ("debug", "info") else f"{level}: {said.pop('event')}"
    return {"timestamp": timestamp, "label": label, "event": text, **said}


def request(event: Event) -> Event:
    """Returns what was called, how it ended and how long it took; a failure of ours has its id."""
    status, milliseconds = event["status"], dict(event["ms"])
    total = milliseconds.pop("total")
    stages = ", ".join(f"{name} {ms:.1f}" for name, ms in milliseconds.items())
    parts = [
        f"{event['method']} {event['path']}",
        *([event["model"]] if "model" in event else []),
        f"{total:.1f} ms" + (f" ({stages})" if stages else ""),
        *([event["code"]] if event["code"] != "ok" else []),
        *([event["request_id"]] if status >= 500 else []),  # a client's message names it
    ]
    return {"label": status, "event": "  ".join(parts)}


def ready(event: Event) -> Event:
    """Returns how a model is served, and what was compared before: milliseconds an item."""
    best = min(ms / int(size) for size, ms in event["batch_ms"].items())
    workers = event["instances"]
    compared = ", ".join(f"{name} {ms:.1f}" for name, ms in event.get("compared", {}).items())
    runtime = f"{event['precision']} on {event['backend']}".removeprefix("- on ")
    text = (
        f"ready in {event.get('load_s', 0):.1f} s: {runtime}, "
        f"{workers} worker{'s' if workers > 1 else ''}, batches up to {event['batch_cap']}, "
        f"{best:.1f} ms an item" + (f" (compared: {compared})" if compared else "")
    )
    return {"model": event["model"], "event": text}


def listening(event: Event) -> Event:
    """Returns where clients connect."""
    host = f"[{event['host']}]" if ":" in event["host"] else event["host"]
    scheme = event.get("protocol", "http")
    return {"event": f"listening on {scheme}://{host}:{event['port']}"}


def died(event: Event) -> Event:
    """Returns why a worker ended, and what happens to its requests."""
    seconds = event.get("restart_in_s", 0)
    text = (
        f"worker {event.get('worker', 0)} {event['reason']}; its requests are computed again, and it "
        f"starts again {f'in {seconds} s' if seconds else 'now'}"
    )
    return {"model": event["model"], "event": text}


def ending(event: Event) -> Event:
    """Returns how many requests are left."""
    return {"event": f"shutting down; inputs in flight: {event.get('inputs', 0)}"}


WORDS: dict[str, Callable[[Event], Event]] = {
    "an inference worker died": died,
    "listening": listening,
    "loading": lambda event: {"model": event["model"], "event": f"loading {event['folder']}"},
    "model ready": ready,
    "request": request,
    "shutting down": ending,
}


def escape_values(_logger: object, _method: str, event: Event) -> Event:
    """Escapes control characters in all values, since a client's path may contain terminal commands."""
    return {key: escape(value) if isinstance(value, str) else value for key, value in event.items()}


def escape(text: str) -> str:
    """Replaces control characters by escape sequences such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encode(_logger: object, _method: str, line: Any) -> bytes:  # Any: as in structlog
    """Encodes a line as UTF-8."""
    return str(line).encode("utf-8", "backslashreplace")
