"""More requests than can be answered, in an open loop: what is refused, how fast, and what is left.

`python -m benchmarks overload URL --photo FILE` finds the capacity with a closed loop, then sends at
constant intervals, at `--times` the capacity, whether or not answers come; then looks again at the
latency of single requests.
"""

import asyncio
import json
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import psutil
import typer
from tqdm import tqdm


@dataclass
class Seen:
    """Latencies in ms by what was answered: a status, or `failed` for a lost connection."""

    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    without_retry_after: int = 0


class Client:
    """HTTP/1.1 by hand on kept connections: as little of the machine as Python allows."""

    def __init__(self, url: str, body: bytes) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        head = (
            f"POST /predict HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: image/jpeg\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A kept one that the server has not closed meanwhile, or a new one."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self.host, self.port)

    async def send(self, seen: Seen) -> None:
        """One request, timed from the moment it was due."""
        started = time.perf_counter()
        try:
            reader, writer = await self.connection()
            writer.write(self.request)
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(
                line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
            )
            await reader.readexactly(int(fields[b"content-length"]))
        except (OSError, EOFError, asyncio.IncompleteReadError):
            seen.latencies["failed"].append((time.perf_counter() - started) * 1000)
            return
        status = head[9:12].decode()
        seen.latencies[status].append((time.perf_counter() - started) * 1000)
        seen.without_retry_after += status == "503" and b"retry-after" not in fields
        if fields.get(b"connection") == b"close":
            writer.close()
        else:
            self.idle.append((reader, writer))


async def closed_loop(client: Client, connections: int, seconds: float) -> Seen:
    """Every connection sends its next request when it has its answer."""
    seen, end = Seen(), time.monotonic() + seconds

    async def one() -> None:
        while time.monotonic() < end:
            await client.send(seen)

    await asyncio.gather(*(one() for _ in range(connections)))
    return seen


async def open_loop(client: Client, rate: float, seconds: float, seen: Seen) -> None:
    """`rate` requests a second at constant intervals; returns when all are answered."""
    tasks: set[asyncio.Task[None]] = set()
    started = time.monotonic()
    for number in tqdm(range(round(rate * seconds)), desc="requests", mininterval=2):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        tasks.add(task := asyncio.create_task(client.send(seen)))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


def resident_mb(pid: int) -> float:
    """Of a process and its children: proportional set size, in MB."""
    main = psutil.Process(pid)
    total = sum(p.memory_full_info().pss for p in (main, *main.children(recursive=True)))
    return float(total / 1e6)


async def measure(url: str, body: bytes, times: float, seconds: float, pid: int) -> dict[str, object]:
    """See the module."""
    client = Client(url, body)
    await closed_loop(client, 16, 3)
    before = await closed_loop(client, 1, 3)
    peak = len((await closed_loop(client, 16, 8)).latencies["200"]) / 8
    memory_before = resident_mb(pid)
    seen = Seen()
    await open_loop(client, peak * times, seconds / 2, seen)
    memory_halfway = resident_mb(pid)
    await open_loop(client, peak * times, seconds / 2, seen)
    after = await closed_loop(client, 1, 3)
    refused, answered = seen.latencies["503"], seen.latencies["200"]
    return {
        "peak_per_second": round(peak, 1),
        "offered_per_second": round(peak * times, 1),
        "answered_per_second": round(len(answered) / seconds, 1),
        "answered_to_peak": round(len(answered) / seconds / peak, 3),
        "answers": {status: len(values) for status, values in seen.latencies.items()},
        "refused_without_retry_after": seen.without_retry_after,
        "refused_p50_ms": round(statistics.median(refused), 2) if refused else None,
        "answered_p50_ms": round(statistics.median(answered), 1),
        "one_client_p50_ms_before": round(statistics.median(before.latencies["200"]), 2),
        "one_client_p50_ms_after": round(statistics.median(after.latencies["200"]), 2),
        "memory_mb_before": round(memory_before, 1),
        "memory_mb_halfway": round(memory_halfway, 1),
        "memory_mb_after": round(resident_mb(pid), 1),
    }


def main(
    url: str,
    photo: Annotated[Path, typer.Option(help="A JPEG, sent as it is.")],
    pid: Annotated[int, typer.Option(help="The service's main process, for its memory.")],
    times: Annotated[float, typer.Option(help="Offered load, as a multiple of the capacity.")] = 3,
    seconds: float = 60,
) -> None:
    """Prints one JSON object."""
    result = asyncio.run(measure(url, photo.read_bytes(), times, seconds, pid))
    typer.echo(json.dumps(result, indent=1))
