"""Ratios of published tutorials beside ours, for docs/tutorial-ratios.md; `tools.tables` calls this.

Ours come from `triton.json`, `jobs.json` and `lock.json` in `benchmarks/results/`, of runs that asked
the tutorials' questions. A ratio without such a run is called not measured.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.chapters import RESULTS, made_by, read
from benchmarks.markdown import Cell, Content, markdown, table

MISSING = "not measured"
Rows = list[Content]


def results(name: str, folder: Path, needs: str) -> Rows:
    """Returns the rows of a results file that have the field `needs`; none if there is no such file."""
    if not (folder / f"{name}.json").exists():
        return []
    return [row for row in read(folder, name)["results"] if needs in row]


def one(rows: Iterable[Content], key: str, **wanted: Any) -> float | None:
    """Returns a figure of the first row with these values, None if there is none."""
    found = (row for row in rows if all(row[name] == value for name, value in wanted.items()))
    return next((float(row[key]) for row in found), None)


def ratio(part: float | None, whole: float | None, text: str = "{:.2f}") -> str:
    """Returns a ratio as text."""
    return text.format(part / whole) if part is not None and whole else MISSING


def per_server(say: Callable[[str], str]) -> str:
    """Returns what is said of Triton and of this service."""
    said = {server: say(server) for server in ("triton", "this service")}
    if set(said.values()) == {MISSING}:
        return MISSING
    return "; ".join(f"{server}: {text}" for server, text in said.items())


def served(rows: Rows) -> dict[str, str]:
    """Returns the ratios that notebook 7 measures with perf_analyzer."""

    def instances(server: str) -> str:
        two, first = (
            one(rows, "per_second", question="instances", server=server, instances=n, load="1 photo")
            for n in (2, 1)
        )
        return ratio(two, first)

    def batching(server: str) -> str:
        with_, without = (
            one(rows, "per_second", question="batching", server=server, max_batch_size=n)
            for n in (16, 1)
        )
        return ratio(with_, without)

    def batches(server: str) -> str:
        sixteen, single = (
            one(rows, "p50", question="instances", server=server, instances=1, load=f"{n}, alone")
            for n in ("16 photos", "1 photo")
        )
        return ratio(sixteen, single, "{:.1f} times as long")

    def bursts(server: str) -> str:
        random, constant = (
            one(rows, "queue", question="arrivals", server=server, load=f"120/s {kind}")
            for kind in ("poisson", "constant")
        )
        if random is None or constant is None:
            return MISSING
        return f"{constant:.2f} ms, at random {random:.2f} ms"

    def waits(server: str) -> str:
        found = [
            one(rows, "queue", question="arrivals", server=server, load=f"{rate}/s constant")
            for rate in (180, 240, 300)
        ]
        return (
            ", ".join(f"{ms:.1f}" for ms in found if ms is not None) + " ms"
            if all(ms is not None for ms in found)
            else MISSING
        )

    parts = {
        "instances": instances,
        "batching": batching,
        "batches": batches,
        "bursts": bursts,
        "waits": waits,
    }
    return {name: per_server(say) for name, say in parts.items()}


def in_jobs(rows: Rows) -> dict[str, str]:
    """Returns the ratios that `jobs` measures."""
    rows = [row for row in rows if row["backend"] == "fastapi_onnx"] or rows
    own = max((row["images_per_second"] for row in rows if not row["instances"]), default=None)
    single = one(rows, "images_per_second", instances=1, max_batch_size=1)
    batched = max((r["images_per_second"] for r in rows if r["max_batch_size"] > 1), default=None)
    more = max((r["images_per_second"] for r in rows if r["instances"] > 1), default=None)
    loading = [row["loading"] for row in rows if not row["instances"]]
    percent = "{:+.0%}"

    def gain(value: float | None) -> str:
        return percent.format(value / single - 1).replace("%", " %") if value and single else MISSING

    return {
        "central": ratio(single, own),
        "central batches": f"{ratio(batched, own)}, {gain(batched)}" if batched else MISSING,
        "central workers": f"{ratio(more, own)}, {gain(more)}" if more else MISSING,
        "loading": f"{min(loading):.0%}".replace("%", " %") if loading else MISSING,
    }


QUESTIONS: tuple[tuple[str, str, str, str], ...] = (
    (
        "instances",
        "Photos a second of two sessions, to one",
        "1.36 to 1.47",
        "Here a session has one thread and the machine two cores: a second session gets the core that "
        "client and server leave free.",
    ),
    (
        "batching",
        "Photos a second with batches, to those without",
        "2.5",
        "On a CPU a batch saves only the call, since each photo costs its full arithmetic. A GPU has "
        "units that a single photo leaves idle.",
    ),
    (
        "batches",
        "A request of 16 photos, to one of one photo",
        "hardly longer",
        "The same: two cores have no idle units that a larger batch would use.",
    ),
    (
        "bursts",
        "Mean wait at 120/s, at constant and at random intervals",
        "requests wait in bursts",
        "The wait depends on the share of the capacity that 120/s are.",
    ),
    (
        "waits",
        "Mean wait at 180, 240 and 300/s",
        "it grows with the rate",
        "Beyond the capacity of one instance, the wait grows for as long as the load lasts.",
    ),
    (
        "central",
        "Images a second of one service, to a model in every job",
        "more than 2",
        "A job with its own model starts Python, imports a library and loads the model for one image.",
    ),
    (
        "central batches",
        "The same with batches, and what they add",
        "3.75 with both, +26.5 %",
        "One image of ResNet-152 keeps two cores busy, so a batch finds nothing idle.",
    ),
    (
        "central workers",
        "The same with more workers, and what they add",
        "3.75 with both, +36 %",
        "The gain ends at the number of cores, two here.",
    ),
    (
        "loading",
        "Share of a job in which it loads the model",
        "30 %",
        "It depends on the disk and on the network's size. Importing the library counts apart.",
    ),
)
"""Key, question, published figure, reason for a difference."""

SOURCES = {"triton": "per_second", "jobs": "importing", "lock": "processes_to_threads"}
"""Results file -> a field that its rows have if they asked these questions."""


def ratios(folder: Path = RESULTS) -> str:
    """Returns the table, with the runs that it is made from."""
    found = {name: results(name, folder, needs) for name, needs in SOURCES.items()}
    ours = {**served(found["triton"]), **in_jobs(found["jobs"])}
    runs = [f"- {made_by(read(folder, name)).rstrip(':')}" for name in ("triton", "jobs") if found[name]]
    rows = [[question, said, ours[key], why] for key, question, said, why in QUESTIONS]
    parts = ["\n".join(runs)] * bool(runs)
    lines = markdown(["question", "published", "here", "why they differ"], rows).replace("---:", "---")
    return "\n\n".join([*parts, lines])


LOCK: dict[str, Cell] = {
    "backend": "{backend}",
    "workers": "{workers}",
    "threads of one process": "{threads_per_second:.0f}/s",
    "processes": "{processes_per_second:.0f}/s",
    "processes to threads, median": "{processes_to_threads:.2f}",
    "all rounds": lambda row: f"{min(row['rounds']):.2f} to {max(row['rounds']):.2f}",
}


def lock(folder: Path = RESULTS) -> str:
    """Returns the table of threads against processes."""
    rows = results("lock", folder, SOURCES["lock"])
    if not rows:
        return "Not measured: there is no `lock.json` among the results."
    return f"{made_by(read(folder, 'lock'))}\n\n{table(rows, LOCK)}"
