"""Renders the files in `benchmarks/results/` as Markdown for README.md and docs/.

`tools.tables` calls this. Every table names its command, and says where another server is ahead as
plainly as where this one is.
"""

import json
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median

from benchmarks import compare_report, gpu_report
from benchmarks.markdown import Cell, Content, cell, fastest, groups, markdown, table
from smallplates.settings import ROOT

RESULTS = ROOT / "benchmarks" / "results"
STAGES = ("decode", "queue", "infer", "rest")
PLOTS = {
    "compare": "Requests a second and p99 latency of every server with 16 connections",
    "load": "Latency by percentile, and the median time of each stage, under five loads",
    "stress": "Mean latency by number of clients, for 1, 2, 4 and 8 instances",
    "jobs": "Images a second of own models and of one service",
    "scale": "Requests a second by web processes, measured, and by cores, calculated",
}
"""Results that `plots.py` draws as docs/images/NAME.svg, and what the plot shows."""

SLEEPING = """
The workers sleep instead of computing, so the web processes reach their limit first. A web process is
100% busy when it uses one core; a worker counts as busy while it sleeps. "Limit" names whatever was
busy for at least 90% of the time.
"""

CALCULATION = """
The second table is calculated, not measured. A request costs a web process h = {web_ms:.2f} ms of CPU
time (above, a single web process at its busiest), and a worker w = {workers} (warm-up of one worker).
So n cores handle 1000 n / (w + h) requests a second with n h / (w + h) web processes. A single web
process handles at most {ceiling:.0f} a second, as above: all but its decoding runs on one thread.
Real rates are lower: memory bandwidth, cores that share units in pairs, clients on the same machine,
and what a worker does besides inference are left out.
"""


def made_by(content: Content) -> str:
    """The command, and where it ran."""
    machine = content["machine"]
    cpu = machine["cpu"].replace("(R)", "").strip()
    return (
        f"`{content['command']}`, {machine['cores']} cores of {cpu}, Python {machine['python']}, "
        f"commit {machine['commit']}:"
    )


def load(content: Content) -> str:
    """A model under several loads, and where the milliseconds go."""
    served = (
        "Precision {precision}, workers: {instances}, web processes: {web_processes}, "
        "batch cap: {max_batch_size}."
    )
    columns: dict[str, Cell] = {
        "load": lambda row: row["load"] + " (not stable)" * (row["stable"] is False),
        "1/s": "{per_second:.0f}",
        **{f"{name} ms": f"{{{name}:.1f}}" for name in ("p50", "p95", "p99")},
        f"{'/'.join(STAGES)} ms": "/".join(f"{{server_ms[{stage}]:.1f}}" for stage in STAGES),
        "mean batch": "{mean_batch:.1f}",
        "of the limit": "{share_of_limit:.2f}",
    }
    return f"{served.format(**content['model'])}\n\n{table(content['results'], columns)}"


def limit(content: Content) -> str:
    """The best layout of each backend and precision, alone and with decoding."""
    results = content["results"]
    rows = [{**results["decode"][-1], "title": "decoding, {instances} threads", "layout": ""}]
    for name, title in (("infer", "inference alone"), ("whole", "decoding and inference")):
        best = fastest(results[name], "backend", "precision")
        more = {
            "title": f"{title}, {{backend}}, {{precision}}",
            "layout": "{instances} x {threads} threads, batch {batch}",
        }
        rows += [{**row, **more} for row in best]
    columns: dict[str, Cell] = {
        "in one process, without HTTP": lambda row: cell(row["title"], row),
        "images/s": "{per_second:.0f}",
        "best with": lambda row: cell(row["layout"], row),
    }
    return table(rows, columns)


OVERLOAD: dict[str, Cell] = {
    "peak in a closed loop, before and after the overload": (
        "{peak_per_second:.0f}/s, {peak_per_second_after:.0f}/s"
    ),
    "offered": "{offered_per_second:.0f}/s",
    "answered with 200": "{answered_per_second:.0f}/s, {answered_to_peak:.2f} of the mean peak",
    "responses": lambda seen: ", ".join(f"{n} x {status}" for status, n in seen["answers"].items()),
    "median time to a refusal": "{refused_p50_ms:.1f} ms",
    "refusals without `Retry-After`": ("{refused_without_retry_after} of {refusals_looked_at} checked"),
    "median latency of a single client, before and after": (
        "{one_client_p50_ms_before:.1f} ms, {one_client_p50_ms_after:.1f} ms"
    ),
    "memory of the service, before, halfway, after": (
        "{memory_mb_before:.0f}, {memory_mb_halfway:.0f}, {memory_mb_after:.0f} MB"
    ),
    "CPU use of the load generator": "{generator_cores:.2f} cores",
}


def overload(content: Content) -> str:
    """What happens beyond the capacity."""
    rows = [[title, cell(text, content["results"])] for title, text in OVERLOAD.items()]
    return markdown(["overload", ""], rows)


def stress(content: Content) -> str:
    """Mean latency and its standard deviation: instances down, clients across."""
    rows = [
        {
            "instances": instances,
            "memory_mb": max(row["memory_mb"] for row in same),
            "by_clients": {row["seen"]["simultaneous_clients"]: row["seen"] for row in same},
        }
        for (instances,), same in groups(content["results"], "instances").items()
    ]
    columns: dict[str, Cell] = {"instances": "{instances}"}
    for count in rows[0]["by_clients"]:
        seen = f"by_clients[{count}]"
        title = f"{count} client{'s' * (count > 1)}, ms"
        columns[title] = f"{{{seen}[mean_ms]:.0f}} ± {{{seen}[sd_ms]:.0f}}"
    return table(rows, {**columns, "memory": "{memory_mb:.0f} MB"})


def shares(row: Content) -> str:
    """The shares of a job's time that a model of its own takes; older results lack them."""
    return f"{row['importing']:.0%}, {row['loading']:.0%}" if row.get("importing") else ""


def jobs(content: Content) -> str:
    """A model in every job against one service for all."""
    columns: dict[str, Cell] = {
        "arrangement": "{arrangement}",
        "service start": lambda row: f"{row['start_s']:.1f} s" * (row["instances"] > 0),
        "jobs": "{seconds:.1f} s",
        "images/s": "{images_per_second:.2f}",
        "importing, loading": shares,
        "highest CPU": "{cpu_percent:.0f} %",
        "highest memory": "{memory_mb:.0f} MB",
    }
    return table(content["results"], columns)


def scale(content: Content) -> str:
    """Web processes beside workers that sleep, and what more cores would handle."""
    results = content["results"]
    columns: dict[str, Cell] = {
        "a worker sleeps": "{sleep ms:g} ms",
        "web processes": "{web processes}",
        "requests": "{1/s:.0f}/s, p99 {p99 ms:.0f} ms",
        "CPU ms per request: web / worker / wrk": "{web ms:.2f} / {worker ms:.2f} / {wrk ms:.2f}",
        "busy: web / workers / machine": "{web busy:.0%} / {workers busy:.0%} / {machine busy:.0%}",
        "limit": "{limit}",
    }
    workers = ", ".join(f"{ms:.2f} ms in {name}" for name, ms in results["worker_ms"].items())
    parts = [
        SLEEPING.strip(),
        table(results["measured"], columns),
        CALCULATION.strip().format(**results, workers=workers),
        plain(results["calculated"]),
    ]
    return "\n\n".join(parts)


def plain(rows: Sequence[Content]) -> str:
    """A table of all fields as they are."""
    return table(rows, {name: itemgetter(name) for name in rows[0]})


def neighbours(content: Content) -> str:
    """A model beside idle ones, and one beside a model that is flooded."""
    pairs = [
        {"connections": count, "ratios": sorted(row["ratio"] for row in same)}
        for (count,), same in groups(content["results"]["idle"], "connections").items()
    ]
    idle: dict[str, Cell] = {
        "connections": "{connections}",
        "pairs": lambda row: len(row["ratios"]),
        "beside to alone, median": lambda row: f"{median(row['ratios']):.3f}",
        "all pairs": lambda row: f"{row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}",
    }
    flooded: dict[str, Cell] = {
        "p50 alone, ms": "{p50 alone:.1f}",
        **{name: f"{{{name}:.1f}}" for name in ("p99 alone", "p50 beside", "p99 beside")},
        "a batch": "{batch:.1f}",
        "limit of p99": "{limit:.1f}",
        "photos a second": "{photos a second:.0f}",
        "failed": "{failed:.0f}",
    }
    return f"{table(pairs, idle)}\n\n{table(content['results']['flooded'], flooded)}"


def gpu(content: Content) -> str:
    """Both backends on a GPU, alone and served."""
    return gpu_report.report(content["results"])


RENDERERS: dict[str, Callable[[Content], str]] = {
    **dict.fromkeys(
        (
            *("compare", "compare-text", "compare-table"),
            *("compare-bf16", "compare-text-bf16", "compare-embed"),
        ),
        compare_report.compare,
    ),
    **{part.__name__: part for part in (load, limit, overload, stress, jobs, neighbours, scale, gpu)},
}
"""Results file -> what renders its figures; docs/performance.md has a place for each."""


def read(folder: Path, name: str) -> Content:
    """The results file NAME.json of a folder."""
    content: Content = json.loads((folder / f"{name}.json").read_text())
    return content


def chapter(name: str, folder: Path = RESULTS) -> str:
    """Returns the command, plot and tables of a results file, or a sentence that there is none."""
    if not (folder / f"{name}.json").exists():
        return f"Not measured: there is no `{name}.json` among the results."
    content = read(folder, name)
    plot = [f"![{PLOTS[name]}](images/{name}.svg)"] if name in PLOTS else []
    return "\n\n".join([made_by(content), *plot, RENDERERS[name](content)])


def ray(folder: Path = RESULTS) -> str:
    """Returns what Ray Serve's ingress costs, with the model in fp32 and in int8."""
    contents = [read(folder, name) for name in ("ray", "ray-int8")]
    return "\n\n".join(f"{made_by(content)}\n\n{plain(content['results'])}" for content in contents)


BACKENDS: dict[str, Cell] = {
    "backend": "{backend}, {precision}",
    "clients": "{clients}",
    "median ms": "{p50:.1f}",
    "p95 ms": "{p95:.1f}",
    "p99 ms": "{p99:.1f}",
    "requests/s": "{per_second:.0f}",
}


def backends(folder: Path = RESULTS) -> str:
    """The table of README.md: both backends, alone and with many clients, from the first notebook."""
    content = read(folder, "notebook")
    return f"{made_by(content)}\n\n{table(content['results'], BACKENDS)}"


def headline(folder: Path = RESULTS) -> str:
    """The sentences of README.md about the comparison."""
    return compare_report.headline(read(folder, "compare"))
