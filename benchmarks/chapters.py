"""Renders the files in `benchmarks/results/` as Markdown for README.md and docs/.

`docs.tables` calls this. Every table names its command, and says what was slower than
another server as plainly as what was faster.
"""

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks import compare_report, gpu_report
from benchmarks.markdown import Content, markdown
from benchmarks.simulation import pages
from serving.settings import ROOT

RESULTS = ROOT / "benchmarks" / "results"
STAGES = ("decode", "queue", "infer", "rest")
PLOTS = {
    "compare": "Answers a second and p99 latency of every server with 16 connections",
    "load": "Latency by percentile, and the median time of each stage, under five loads",
    "stress": "Mean latency by number of clients, for 1, 2, 4 and 8 instances",
    "jobs": "Images a second of own models and of one service",
    "scale": "Answers a second by web processes, measured, and by cores, calculated",
    "simulate": "Simulated latency by load balancing policy, and answers during and after a surge",
}
"""Results that `plots.py` draws as docs/images/NAME.svg, and what the plot shows."""

SLEEPING = """
Workers that sleep instead of computing take little of the machine, so that the web processes reach their
limit first. A web process is 100% busy when it uses one core; a worker is busy while it sleeps. The
limit is what was busy all the time.
"""

CALCULATION = """
The second table is a calculation, not a measurement and not a promise. A request takes a web process
h = {web_ms:.2f} ms of a core (above, one web process at its busiest), and a worker w = {workers}
(warm-up of one worker). If n cores do nothing else, they answer n / (w + h) requests a second, and
web processes take n h / (w + h) of the cores, one process each. A single web process stops at
{ceiling:.0f} a second, as above: its decoding threads use a second core, but all else is one thread.
Left out are what a worker does beside inference (above), the memory's bandwidth, cores that share their
units in pairs, and clients on the same machine: each makes the real figure smaller.
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
    head = ["load", "1/s", "p50 ms", "p95", "p99", "decode/queue/infer/rest", "batch", "of the limit"]
    return markdown(head, rows)


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
    return markdown(["instances", *(f"{count} clients, ms" for count in clients), "memory"], rows)


def jobs(content: Content) -> str:
    """A model in every job against one service for all."""
    rows = [
        [
            row["arrangement"],
            f"{row['seconds']:.1f} s",
            f"{row['images_per_second']:.2f}",
            f"{row['cpu_percent']:.0f} %",
            f"{row['memory_mb']:.0f} MB",
        ]
        for row in content["results"]
    ]
    return markdown(["arrangement", "total", "images/s", "highest CPU", "highest memory"], rows)


def scale(content: Content) -> str:
    """Web processes beside workers that sleep, and what more cores would answer."""
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
    head = ["a worker sleeps", "web processes", "answers", "CPU ms a request: web / worker / wrk"]
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


def gpu(content: Content) -> str:
    """Both backends on a GPU, alone and served."""
    return gpu_report.markdown_of(content["results"])


SECTIONS: dict[str, tuple[str, Callable[[Content], str]]] = {
    "compare": ("## Beside other servers", compare_report.compare),
    "compare-text": ("## Texts of many lengths beside other servers", compare_report.compare),
    "compare-bf16": ("## In bf16", compare_report.compare),
    "compare-text-bf16": ("## Texts in bf16", compare_report.compare),
    "load": ("## The shipped model under load", load),
    "limit": ("## What the machine could do", limit),
    "overload": ("## More than can be answered", overload),
    "stress": ("## Instances and clients", stress),
    "jobs": ("## A model in every process, or one service", jobs),
    "scale": ("## Web processes, and more cores", scale),
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


def simulation(folder: Path = RESULTS) -> str:
    """Returns the scenarios of `simulate`, and those of one policy with many more replicas."""
    content, more = read(folder, "simulate"), read(folder, "simulate-10000")
    plot = f"![{PLOTS['simulate']}](images/simulate.svg)"
    return "\n\n".join(
        [made_by(content), plot, pages.scenarios(content), made_by(more), pages.scenarios(more)]
    )


def validation(folder: Path = RESULTS) -> str:
    """Returns the simulated figures of `simulate --validate` beside the measured ones."""
    content = read(folder, "simulate-validation")
    return f"{made_by(content)}\n\n{pages.validation(content)}"


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
