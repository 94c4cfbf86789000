"""Renders the files in `benchmarks/results/` as Markdown for README.md and docs/performance.md.

`docs.tables` calls this. Every table names its command, and says what was slower than
another server as plainly as what was faster.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_report
from benchmarks.markdown import markdown
from serving.settings import ROOT

RESULTS = ROOT / "benchmarks" / "results"
OURS = "this service"
VARIANT = f"{OURS}, "
STAGES = ("decode", "queue", "infer", "rest")
IN_PROCESS = "in process, no HTTP"
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

PLOTS = {
    "compare": "Answers a second and p99 latency of every server with 16 connections",
    "load": "Latency by percentile, and the median time of each stage, under five loads",
    "stress": "Mean latency by number of clients, for 1, 2, 4 and 8 instances",
    "jobs": "Images a second of own models and of one service",
}
"""Results that `plots.py` draws as docs/images/NAME.svg, and what the plot shows."""

Content = dict[str, Any]
"""A results file: command, machine, results."""


def made_by(content: Content) -> str:
    """The command, and where it ran."""
    machine = content["machine"]
    cpu = machine["cpu"].replace("(R)", "").strip()
    return (
        f"`{content['command']}`, {machine['cores']} cores of {cpu}, Python {machine['python']}, "
        f"commit {machine['commit']}:"
    )


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


def number(load: str) -> int:
    """`16 connections` -> 16."""
    return int(load.split()[0])


def compare(content: Content) -> str:
    """Every server, every load: rate, median or p99, and how much faster this service is."""
    results = content["results"]
    ours = results[OURS]
    rows = []
    for name, loads in results.items():
        if name == IN_PROCESS:
            continue
        cells = []
        for load, figures in loads.items():
            key, label = ("p50_ms", "p50") if number(load) == 1 else ("p99_ms", "p99")
            times = "" if name == OURS else f", x {ratio(ours[load], figures):.2f}"
            cells.append(
                f"{median(figures, 'per_second'):.0f}/s, {label} {median(figures, key):.0f} ms{times}"
            )
        rows.append([name, *cells])
    loads_named = [singular(load) for load in ours]
    in_process = ", ".join(
        f"{singular(load)} {spread(figures)}" for load, figures in results.get(IN_PROCESS, {}).items()
    )
    return "\n\n".join(
        [
            markdown(["server", *loads_named], rows),
            f"x: how many times as fast this service is, median of {len(next(iter(ours.values())))} "
            f"rounds. Without HTTP, in one process: {in_process}.",
            slower(results),
        ]
    )


def slower(results: Content) -> str:
    """Where another server was faster or had the lower p99, and the share of the limit."""
    ours, found = results[OURS], []
    for name, loads in results.items():
        if name in (OURS, IN_PROCESS):
            continue
        for load, figures in loads.items():
            if (value := ratio(ours[load], figures)) < LEVEL:
                found.append(f"{name} answers {1 / value:.2f} times as many at {singular(load)}")
            theirs, mine = median(figures, "p99_ms"), median(ours[load], "p99_ms")
            if theirs < mine and not name.startswith(VARIANT):
                where = f"at {singular(load)} ({theirs:.0f} against {mine:.0f} ms)"
                found.append(f"{name} has the lower p99 {where}")
    in_process = results.get(IN_PROCESS, {}).values()
    limit = max((row["per_second"] for figures in in_process for row in figures), default=0.0)
    shares = ", ".join(
        f"{median(figures, 'per_second') / limit:.2f} at {load}"
        for load, figures in ours.items()
        if limit and number(load) > 1
    )
    best = "Of the best that the same cores did in process, in any round, this service reaches"
    reached = f"{best} {shares}." if shares else ""
    return f"Slower, or later: {'; '.join(found) or 'nothing in these rounds'}. {reached}".strip()


def load(content: Content) -> str:
    """The shipped model under several loads, and where the milliseconds go."""
    rows = []
    for one in content["results"]:
        server = one["server_ms"] or {}
        stages = "/".join(f"{server.get(stage, 0):.1f}" for stage in STAGES)
        share = f"{one['share_of_limit']:.2f}" if one["share_of_limit"] else ""
        mark = "" if one["stable"] is not False else " (not stable)"
        rows.append(
            [
                one["load"] + mark,
                f"{one['per_second']:.0f}",
                *(f"{one[name]:.1f}" for name in ("p50", "p95", "p99")),
                stages,
                f"{one['mean_batch'] or 0:.1f}",
                share,
            ]
        )
    head = ["load", "1/s", "p50 ms", "p95", "p99", "decode/queue/infer/rest", "batch", "of the limit"]
    return markdown(head, rows)


def limit(content: Content) -> str:
    """The best layout of each backend, alone and with decoding."""
    rows = []
    decode = content["results"]["decode"][-1]
    rows.append([f"decoding, {decode['instances']} threads", f"{decode['per_second']:.0f}", ""])
    for what, text in (("infer", "inference alone"), ("whole", "decoding and inference")):
        figures = content["results"][what]
        for backend in dict.fromkeys(figure["backend"] for figure in figures):
            best = max(
                (f for f in figures if f["backend"] == backend), key=lambda figure: figure["per_second"]
            )
            layout = f"{best['instances']} x {best['threads']} threads, batch {best['batch']}"
            rows.append([f"{text}, {backend}", f"{best['per_second']:.0f}", layout])
    return markdown(["in one process, without HTTP", "images/s", "at its best with"], rows)


def overload(content: Content) -> str:
    """What happens beyond the capacity."""
    seen = content["results"]
    rows = [
        [
            "offered, answered; peak in a closed loop before and after",
            f"{seen['offered_per_second']:.0f}, {seen['answered_per_second']:.0f}; "
            f"{seen['peak_per_second']:.0f}, {seen['peak_per_second_after']:.0f} a second",
        ],
        ["answers", ", ".join(f"{count} x {status}" for status, count in seen["answers"].items())],
        ["cores of the load generator", f"{seen['generator_cores']:.2f}"],
        ["refused after, median", f"{seen['refused_p50_ms']:.1f} ms"],
        [
            "refused without `Retry-After`",
            f"{seen['refused_without_retry_after']} of {seen['refusals_looked_at']} looked at",
        ],
        [
            "one client's median before and after",
            f"{seen['one_client_p50_ms_before']:.1f}, {seen['one_client_p50_ms_after']:.1f} ms",
        ],
        [
            "memory before, halfway, after",
            ", ".join(f"{seen[f'memory_mb_{when}']:.0f}" for when in ("before", "halfway", "after"))
            + " MB",
        ],
    ]
    return markdown(["overload", ""], rows)


def stress(content: Content) -> str:
    """Mean latency and its standard deviation: instances down, clients across."""
    cells = {(one["instances"], one["seen"]["simultaneous_clients"]): one for one in content["results"]}
    clients = sorted({key[1] for key in cells})
    rows = []
    for instances in sorted({key[0] for key in cells}):
        seen = [cells[instances, count]["seen"] for count in clients]
        memory = max(cells[instances, count]["memory_mb"] for count in clients)
        rows.append(
            [
                str(instances),
                *(f"{s['mean_ms']:.0f} ± {s['sd_ms']:.0f}" for s in seen),
                f"{memory:.0f} MB",
            ]
        )
    return markdown(["instances", *(f"{count} clients, ms" for count in clients), "memory"], rows)


def jobs(content: Content) -> str:
    """A model in every job against one service for all."""
    rows = [
        [
            one["arrangement"],
            f"{one['seconds']:.1f} s",
            f"{one['images_per_second']:.2f}",
            f"{one['cpu_percent']:.0f} %",
            f"{one['memory_mb']:.0f} MB",
        ]
        for one in content["results"]
    ]
    return markdown(["arrangement", "total", "images/s", "highest CPU", "highest memory"], rows)


def gpu(content: Content) -> str:
    """Both backends on a GPU, alone and served."""
    return gpu_report.markdown_of(content["results"])


SECTIONS: dict[str, tuple[str, Callable[[Content], str]]] = {
    "compare": ("## Beside other servers", compare),
    "load": ("## The shipped model under load", load),
    "limit": ("## What the machine could do", limit),
    "overload": ("## More than can be answered", overload),
    "stress": ("## Instances and clients", stress),
    "jobs": ("## A model in every process, or one service", jobs),
    "gpu": ("## On a GPU", gpu),
}


def read(folder: Path, name: str) -> Content:
    """The results file NAME.json of a folder."""
    content: Content = json.loads((folder / f"{name}.json").read_text())
    return content


def chapters(folder: Path = RESULTS) -> str:
    """One chapter for each results file that the folder has: title, command, plot, table."""
    parts = []
    for name, (title, render) in SECTIONS.items():
        if (folder / f"{name}.json").exists():
            content = read(folder, name)
            parts += [f"{title}\n{made_by(content)}"]
            parts += [f"![{PLOTS[name]}](images/{name}.svg)"] if name in PLOTS else []
            parts += [render(content)]
    return "\n\n".join(parts)


def headline(folder: Path = RESULTS) -> str:
    """The rate at 16 connections, and its ratio to every other server's, in two sentences."""
    content = read(folder, "compare")
    results, machine = content["results"], content["machine"]
    ours = results[OURS][HEADLINE_LOAD]
    ratios = {
        name: ratio(ours, loads[HEADLINE_LOAD])
        for name, loads in results.items()
        if name not in (OURS, IN_PROCESS) and not name.startswith(VARIANT)
    }
    listed = [
        f"{value:.2f} times {PEERS.get(name, name)}"
        for name, value in sorted(ratios.items(), key=lambda item: item[1])
    ]
    return (
        f"With {HEADLINE_LOAD} on {machine['cores']} cores of {machine['cpu']}, this service answers "
        f"{median(ours, 'per_second'):.0f} requests a second with a p99 of "
        f"{median(ours, 'p99_ms'):.0f} ms. "
        f"That is {', '.join(listed[:-1])} and {listed[-1]}."
    )
