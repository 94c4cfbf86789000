"""Renders the files in `benchmarks/results/` as Markdown for README.md and docs/.

`tools.tables` calls this. Every table names its command, and says where another server is ahead as
plainly as where this one is.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks import compare_report, gpu_report
from benchmarks.markdown import Content, markdown
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
    """The shipped model under several loads, and where the milliseconds go."""
    model = content["model"]
    served = (
        f"Precision {model['precision']}, workers: {model['instances']}, web processes: "
        f"{model['web_processes']}, batch cap: {model['max_batch_size']}."
    )
    rows = []
    for row in content["results"]:
        server = row["server_ms"] or {}
        stages = "/".join(f"{server.get(stage, 0):.1f}" for stage in STAGES)
        share = f"{row['share_of_limit']:.2f}" if row["share_of_limit"] else ""
        mark = "" if row["stable"] is not False else " (not stable)"
        rows.append(
            [
                row["load"] + mark,
                f"{row['per_second']:.0f}",
                *(f"{row[name]:.1f}" for name in ("p50", "p95", "p99")),
                stages,
                f"{row['mean_batch'] or 0:.1f}",
                share,
            ]
        )
    stages_ms = f"{'/'.join(STAGES)} ms"
    head = ["load", "1/s", "p50 ms", "p95 ms", "p99 ms", stages_ms, "mean batch", "of the limit"]
    return f"{served}\n\n{markdown(head, rows)}"


def limit(content: Content) -> str:
    """The best layout of each backend and precision, alone and with decoding."""
    rows = []
    decode = content["results"]["decode"][-1]
    rows.append([f"decoding, {decode['instances']} threads", f"{decode['per_second']:.0f}", ""])
    for what, text in (("infer", "inference alone"), ("whole", "decoding and inference")):
        figures = content["results"][what]
        for kind in dict.fromkeys((figure["backend"], figure["precision"]) for figure in figures):
            same = [f for f in figures if (f["backend"], f["precision"]) == kind]
            best = max(same, key=lambda figure: figure["per_second"])
            layout = f"{best['instances']} x {best['threads']} threads, batch {best['batch']}"
            rows.append([f"{text}, {', '.join(kind)}", f"{best['per_second']:.0f}", layout])
    return markdown(["in one process, without HTTP", "images/s", "best with"], rows)


def overload(content: Content) -> str:
    """What happens beyond the capacity."""
    seen = content["results"]
    memory = [f"{seen[f'memory_mb_{when}']:.0f}" for when in ("before", "halfway", "after")]
    rows = [
        [
            "peak in a closed loop, before and after the overload",
            f"{seen['peak_per_second']:.0f}/s, {seen['peak_per_second_after']:.0f}/s",
        ],
        ["offered", f"{seen['offered_per_second']:.0f}/s"],
        [
            "answered with 200",
            f"{seen['answered_per_second']:.0f}/s, {seen['answered_to_peak']:.2f} of the mean peak",
        ],
        ["responses", ", ".join(f"{count} x {status}" for status, count in seen["answers"].items())],
        ["median time to a refusal", f"{seen['refused_p50_ms']:.1f} ms"],
        [
            "refusals without `Retry-After`",
            f"{seen['refused_without_retry_after']} of {seen['refusals_looked_at']} checked",
        ],
        [
            "median latency of a single client, before and after",
            f"{seen['one_client_p50_ms_before']:.1f} ms, {seen['one_client_p50_ms_after']:.1f} ms",
        ],
        ["memory of the service, before, halfway, after", f"{', '.join(memory)} MB"],
        ["CPU use of the load generator", f"{seen['generator_cores']:.2f} cores"],
    ]
    return markdown(["overload", ""], rows)


def stress(content: Content) -> str:
    """Mean latency and its standard deviation: instances down, clients across."""
    cells = {
        (cell["instances"], cell["seen"]["simultaneous_clients"]): cell for cell in content["results"]
    }
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
    columns = [f"{count} client{'s' * (count > 1)}, ms" for count in clients]
    return markdown(["instances", *columns, "memory"], rows)


def jobs(content: Content) -> str:
    """A model in every job against one service for all."""
    rows = [
        [
            row["arrangement"],
            f"{row['start_s']:.1f} s" if row["instances"] else "",
            f"{row['seconds']:.1f} s",
            f"{row['images_per_second']:.2f}",
            f"{row['cpu_percent']:.0f} %",
            f"{row['memory_mb']:.0f} MB",
        ]
        for row in content["results"]
    ]
    head = ["arrangement", "service start", "jobs", "images/s", "highest CPU", "highest memory"]
    return markdown(head, rows)


def scale(content: Content) -> str:
    """Web processes beside workers that sleep, and what more cores would handle."""
    results = content["results"]
    measured = [
        [
            f"{row['sleep ms']:g} ms",
            str(row["web processes"]),
            f"{row['1/s']:.0f}/s, p99 {row['p99 ms']:.0f} ms",
            " / ".join(f"{row[f'{part} ms']:.2f}" for part in ("web", "worker", "wrk")),
            " / ".join(f"{row[f'{part} busy']:.0%}" for part in ("web", "workers", "machine")),
            row["limit"],
        ]
        for row in results["measured"]
    ]
    head = ["a worker sleeps", "web processes", "requests", "CPU ms per request: web / worker / wrk"]
    workers = ", ".join(f"{ms:.2f} ms in {name}" for name, ms in results["worker_ms"].items())
    parts = [
        SLEEPING.strip(),
        markdown([*head, "busy: web / workers / machine", "limit"], measured),
        CALCULATION.strip().format(**results, workers=workers),
        markdown(
            list(results["calculated"][0]),
            [list(map(str, row.values())) for row in results["calculated"]],
        ),
    ]
    return "\n\n".join(parts)


def neighbours(content: Content) -> str:
    """A model beside idle ones, and one beside a model that is flooded."""
    seen = content["results"]
    ratios: dict[int, list[float]] = {}
    for row in seen["idle"]:
        ratios.setdefault(row["connections"], []).append(row["ratio"])
    idle = [
        [
            str(count),
            str(len(values)),
            f"{median(values):.3f}",
            f"{min(values):.2f} to {max(values):.2f}",
        ]
        for count, values in ratios.items()
    ]
    flooded = [
        [
            *(f"{row[f'{part} {when}']:.1f}" for when in ("alone", "beside") for part in ("p50", "p99")),
            *(f"{row[name]:.1f}" for name in ("batch", "limit")),
            f"{row['photos a second']:.0f}",
            f"{row['failed']:.0f}",
        ]
        for row in seen["flooded"]
    ]
    head = ["p50 alone, ms", "p99 alone", "p50 beside", "p99 beside", "a batch", "limit of p99"]
    return "\n\n".join(
        [
            markdown(["connections", "pairs", "beside to alone, median", "all pairs"], idle),
            markdown([*head, "photos a second", "failed"], flooded),
        ]
    )


def gpu(content: Content) -> str:
    """Both backends on a GPU, alone and served."""
    return gpu_report.markdown_of(content["results"])


RENDERERS: dict[str, Callable[[Content], str]] = {
    "compare": compare_report.compare,
    "compare-text": compare_report.compare,
    "compare-bf16": compare_report.compare,
    "compare-text-bf16": compare_report.compare,
    "load": load,
    "limit": limit,
    "overload": overload,
    "stress": stress,
    "jobs": jobs,
    "neighbours": neighbours,
    "scale": scale,
    "gpu": gpu,
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
    parts = []
    for name in ("ray", "ray-int8"):
        content = read(folder, name)
        rows = [[str(value) for value in row.values()] for row in content["results"]]
        parts += [made_by(content), markdown(list(content["results"][0]), rows)]
    return "\n\n".join(parts)


def headline(folder: Path = RESULTS) -> str:
    """The sentences of README.md about the comparison."""
    return compare_report.headline(read(folder, "compare"))
