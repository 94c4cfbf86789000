"""Renders the figures of `compare.py` as Markdown, for `chapters.py`."""

import statistics
from collections.abc import Sequence

from benchmarks import table
from benchmarks.markdown import Content, markdown
from benchmarks.table import ENDS, IN_PROCESS, number, reference

OURS = table.REFERENCE
LEVEL = 0.995  # a ratio printed as 1.00 is neither faster nor slower
HEADLINE_LOAD = "16 connections"
COSTS = [f"memory, {HEADLINE_LOAD}", f"CPU per request, {HEADLINE_LOAD}"]
PEERS = {
    "bentoml": "BentoML",
    "fastapi, onnx": "FastAPI with ONNX Runtime in its handler",
    "fastapi, torch": "FastAPI with PyTorch in its handler",
    "litserve": "LitServe",
    "ray": "Ray Serve",
    "torchserve": "TorchServe",
    "triton": "Triton's Python backend",
}
"""Names for running text; the others are written as in `servers.py`."""

SHORT_MS = 2


def median(rows: Sequence[Content], key: str) -> float:
    """Over the rounds."""
    return float(statistics.median(row[key] for row in rows))


def spread(rows: Sequence[Content]) -> str:
    """Median and range of the rate."""
    values = [row["per_second"] for row in rows]
    return f"{statistics.median(values):.0f}/s ({min(values):.0f} to {max(values):.0f})"


def milliseconds(value: float, digits: int) -> str:
    """A time with so many digits, or with two if it is short."""
    return f"{value:.{digits if value >= SHORT_MS else 2}f} ms"


def ratio(ours: Sequence[Content], its: Sequence[Content]) -> float:
    """How much faster this service is: the median of each round's own ratio."""
    pairs = zip(ours, its, strict=True)
    return float(statistics.median(a["per_second"] / b["per_second"] for a, b in pairs))


def singular(load: str) -> str:
    """`1 connections` -> `1 connection`."""
    return load.removesuffix("s") if number(load) == 1 else load


def compare(content: Content) -> str:
    """Every server, every load: rate, median or p99, how much faster this service is, and the costs."""
    results = content["results"]
    ours = results[OURS]
    rows = []
    for name, loads in results.items():
        if name.startswith(IN_PROCESS):
            continue
        cells = []
        for load, figures in loads.items():
            key, label = ("p50_ms", "p50") if number(load) == 1 else ("p99_ms", "p99")
            same = results.get(reference(name), {}).get(load)
            times = f", x {ratio(same, figures):.2f}" if same and name != reference(name) else ""
            duration = milliseconds(median(figures, key), 0)
            cells.append(f"{median(figures, 'per_second'):.0f}/s, {label} {duration}{times}")
        rows.append([name, *cells, *costs(loads)])
    in_process = "; ".join(
        without_http(results, end) for end in ENDS.values() if IN_PROCESS + end in results
    )
    rounds = len(next(iter(ours.values())))
    head = ["server", *map(singular, ours), *(COSTS if costs(ours) else [])]
    return "\n\n".join(
        [
            markdown(head, rows),
            f"Medians of {rounds} rounds. In one process, without HTTP: {in_process}.",
            slower(results),
        ]
    )


def without_http(results: Content, end: str) -> str:
    """The rates in process, in one precision."""
    rates = ", ".join(
        f"{singular(load)} {spread(rows)}" for load, rows in results[IN_PROCESS + end].items()
    )
    return rates + end.replace(",", " in")


def costs(loads: Content) -> list[str]:
    """A server's memory, and CPU time per request, at the headline's load; empty if not measured."""
    rounds = loads.get(HEADLINE_LOAD, [{}])
    if "memory_mb" not in rounds[0]:
        return []
    return [f"{median(rounds, 'memory_mb'):.0f} MB", milliseconds(median(rounds, "cpu_s_per_1000"), 1)]


def slower(results: Content) -> str:
    """Lists the rows that are faster or have a lower p99, and this service's share of the limit."""
    remarks = []
    for name, loads in results.items():
        ours = results.get(reference(name))
        if name.startswith((OURS, IN_PROCESS)) or not ours:
            continue
        for load, figures in loads.items():
            if (value := ratio(ours[load], figures)) < LEVEL:
                times = f"{1 / value:.2f} times as many requests"
                remarks.append(f"{name} handles {times} at {singular(load)}")
            theirs, mine = (round(median(rows, "p99_ms")) for rows in (figures, ours[load]))
            if theirs < mine:
                where = f"at {singular(load)} ({theirs} against {mine} ms)"
                remarks.append(f"{name} has the lower p99 {where}")
    listed = [
        ", ".join(f"{share:.2f} at {load}" for load, share in shares.items()) + end.replace(",", " in")
        for end in ENDS.values()
        if (shares := table.shares(results, OURS + end))
    ]
    best = "Of the best in-process rate of any round, this service reaches"
    reached = f"{best} {'; '.join(listed)}." if listed else ""
    return f"Ahead of this service: {'; '.join(remarks) or 'none in these rounds'}. {reached}".strip()


def headline(content: Content) -> str:
    """The rate at 16 connections, and its ratio to every other server's, in each precision."""
    results, machine = content["results"], content["machine"]
    ours = results[OURS][HEADLINE_LOAD]
    lower = {
        precision: results[OURS + end][HEADLINE_LOAD]
        for precision, end in ENDS.items()
        if end and HEADLINE_LOAD in results.get(OURS + end, {})
    }
    return (
        f"With {HEADLINE_LOAD} on {machine['cores']} cores of {machine['cpu'].replace('(R)', '')}, this "
        f"service handles {median(ours, 'per_second'):.0f} requests a second with a p99 of "
        f"{median(ours, 'p99_ms'):.0f} ms. "
        f"That is {times_peers(results, '')}, all in fp32."
    ) + "".join(in_lower(results, ours, name, rounds) for name, rounds in lower.items())


def in_lower(
    results: Content, fp32: Sequence[Content], precision: str, rounds: Sequence[Content]
) -> str:
    """The headline's sentence about another precision."""
    peers = times_peers(results, ENDS[precision])
    runtime = " with OpenVINO" if precision == "bf16" else ""
    return (
        f" In {precision}{runtime} it handles {median(rounds, 'per_second'):.0f}, "
        f"{ratio(rounds, fp32):.2f} times as many"
        f"{f': {peers} in {precision}' if peers else ''}."
    )


def times_peers(results: Content, end: str) -> str:
    """How many times the rate of each peer of one precision this service has, the closest first."""
    ours = results[OURS + end][HEADLINE_LOAD]
    ratios = {
        name.removesuffix(end): ratio(ours, loads[HEADLINE_LOAD])
        for name, loads in results.items()
        if table.precision(name) == end and not name.startswith((OURS, IN_PROCESS))
    }
    listed = [
        f"{value:.2f} times {PEERS.get(name, name)}"
        for name, value in sorted(ratios.items(), key=lambda item: item[1])
    ]
    return " and ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))
