"""Renders the figures of `compare.py` as Markdown, for `chapters.py`."""

import statistics
from collections.abc import Sequence

from benchmarks import table
from benchmarks.markdown import Content, markdown
from benchmarks.table import ENDS, IN_PROCESS, number, reference

OURS = table.REFERENCE
LEVEL = 0.995  # a ratio printed as 1.00 is neither faster nor slower
HEADLINE_LOAD = "16 connections"
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


def median(rows: Sequence[Content], key: str) -> float:
    """Over the rounds."""
    return float(statistics.median(row[key] for row in rows))


def spread(rows: Sequence[Content]) -> str:
    """Median and range of the rate."""
    values = [row["per_second"] for row in rows]
    return f"{statistics.median(values):.0f}/s ({min(values):.0f} to {max(values):.0f})"


def ratio(ours: Sequence[Content], its: Sequence[Content]) -> float:
    """How much faster this service is: the median of each round's own ratio."""
    pairs = zip(ours, its, strict=True)
    return float(statistics.median(a["per_second"] / b["per_second"] for a, b in pairs))


def singular(load: str) -> str:
    """`1 connections` -> `1 connection`."""
    return load.removesuffix("s") if number(load) == 1 else load


def compare(content: Content) -> str:
    """Every server, every load: rate, median or p99, and how much faster this service is."""
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
            cells.append(
                f"{median(figures, 'per_second'):.0f}/s, {label} {median(figures, key):.0f} ms{times}"
            )
        rows.append([name, *cells])
    in_process = "; ".join(
        without_http(results, end) for end in ENDS.values() if IN_PROCESS + end in results
    )
    parts = [
        markdown(["server", *map(singular, ours)], rows),
        f"x: how many times as fast this service is, in the same precision, median of "
        f"{len(next(iter(ours.values())))} rounds. Without HTTP, in one process: {in_process}.",
        costs(results),
        slower(results),
    ]
    return "\n\n".join(filter(None, parts))


def without_http(results: Content, end: str) -> str:
    """The rates in process, in one precision."""
    rates = ", ".join(
        f"{singular(load)} {spread(rows)}" for load, rows in results[IN_PROCESS + end].items()
    )
    return rates + end.replace(",", " in")


def costs(results: Content) -> str:
    """Memory and CPU time of every server at the headline's load; empty if they were not measured."""
    rows = [
        [name, f"{median(rounds, 'memory_mb'):.0f} MB", f"{median(rounds, 'cpu_s_per_1000'):.1f} s"]
        for name, loads in results.items()
        for rounds in [loads.get(HEADLINE_LOAD, [{}])]
        if "memory_mb" in rounds[0]
    ]
    head = [HEADLINE_LOAD, "memory of all processes", "CPU time for 1000 answers"]
    return markdown(head, rows) if rows else ""


def slower(results: Content) -> str:
    """Where another server was faster or had the lower p99, and the share of the limit."""
    remarks = []
    for name, loads in results.items():
        ours = results.get(reference(name))
        if name == reference(name) or name.startswith(IN_PROCESS) or not ours:
            continue
        for load, figures in loads.items():
            if (value := ratio(ours[load], figures)) < LEVEL:
                remarks.append(f"{name} answers {1 / value:.2f} times as many at {singular(load)}")
            theirs, mine = median(figures, "p99_ms"), median(ours[load], "p99_ms")
            if theirs < mine and not name.startswith(OURS):
                where = f"at {singular(load)} ({theirs:.0f} against {mine:.0f} ms)"
                remarks.append(f"{name} has the lower p99 {where}")
    listed = [
        ", ".join(f"{share:.2f} at {load}" for load, share in shares.items()) + end.replace(",", " in")
        for end in ENDS.values()
        if (shares := table.shares(results, OURS + end))
    ]
    best = "Of the best that the same cores did in process, in any round, this service reaches"
    reached = f"{best} {'; '.join(listed)}." if listed else ""
    return f"Slower, or later: {'; '.join(remarks) or 'nothing in these rounds'}. {reached}".strip()


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
        f"With {HEADLINE_LOAD} on {machine['cores']} cores of {machine['cpu']}, this service answers "
        f"{median(ours, 'per_second'):.0f} requests a second with a p99 of "
        f"{median(ours, 'p99_ms'):.0f} ms. "
        f"That is {times_peers(results, '')}, all with ONNX Runtime in fp32."
    ) + "".join(in_lower(results, ours, name, rounds) for name, rounds in lower.items())


def in_lower(
    results: Content, fp32: Sequence[Content], precision: str, rounds: Sequence[Content]
) -> str:
    """The headline's sentence about another precision."""
    peers = times_peers(results, ENDS[precision])
    runtime = " with OpenVINO" if precision == "bf16" else ""
    return (
        f" In {precision}{runtime} it answers {median(rounds, 'per_second'):.0f}, "
        f"{ratio(rounds, fp32):.2f} times as many"
        f"{f': {peers} in {precision}' if peers else ''}."
    )


def times_peers(results: Content, end: str) -> str:
    """How many times as many as each peer of one precision this service answers, the closest first."""
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
