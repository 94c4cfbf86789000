"""Many replicas, simulated: what breaks first, and which settings prevent it.

`python -m benchmarks simulate` runs the named scenarios of `benchmarks.simulation` with the service
times that were measured (benchmarks/results/). `--validate` runs the real service instead, with workers
that sleep, and prints its figures beside the simulated ones.
"""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks import chapters
from benchmarks.simulation import pages, validation
from benchmarks.simulation.plan import Service
from benchmarks.simulation.scenarios import SCENARIOS, Run, Runs, Scenario, limited
from smallplates.cli.load import report
from smallplates.cli.load.machine import write_results
from smallplates.cli.load.options import numbers

WORKERS = 2
REFUSAL_MS = 0.14  # docs/performance.md: a refusal in a row of refusals


def measured_service(results: Path = chapters.RESULTS) -> Service:
    """Returns a measured replica: two workers in fp32, and a web process with a core of its own."""
    rows = [
        row
        for row in chapters.read(results, "limit")["results"]["infer"]
        if row["backend"] == "fastapi_onnx"
        and row["precision"] == "fp32"
        and row["instances"] == WORKERS
        and row["threads"] == 1
    ]
    batch_ms = {row["batch"]: WORKERS * row["batch"] * 1000 / row["per_second"] for row in rows}
    ceiling = chapters.read(results, "scale")["results"]["ceiling"]
    return Service(batch_ms, WORKERS, web_ms=1000 / ceiling, refusal_ms=REFUSAL_MS)


def run(scenario: Scenario, service: Service, replicas: int, requests: int, seed: int) -> Runs:
    """Simulates every variant of a scenario."""
    plans = scenario.plans(service, replicas)
    return {
        name: Run.of(limited(replace(plan, seed=seed), requests))
        for name, plan in tqdm(plans.items(), desc=scenario.title, mininterval=1)
    }


def contents(scenario: Scenario, replicas: int, runs: Runs) -> dict[str, Any]:
    """Returns a scenario's results as JSON has them."""
    variants = {
        name: {"figures": result.figures, "timeline": vars(result.timeline)}
        for name, result in runs.items()
    }
    head = {"title": scenario.title, "replicas": replicas, "result": scenario.result(runs)}
    return {**head, "variants": variants}


def print_scenario(content: dict[str, Any]) -> None:
    """Prints a scenario's table and its result."""
    rows = [{"variant": name, **variant["figures"]} for name, variant in content["variants"].items()]
    report.print_table(f"{content['title']}, {content['replicas']} replicas", rows, [content["result"]])


def validate(model_dir: Path, sleep_ms: float, seconds: float) -> dict[str, Any]:
    """Compares with the real service; prints and returns the figures."""
    replica, cases = validation.compare(model_dir, sleep_ms, seconds)
    missed = [
        f"{case.replicas} replicas at {case.load:g}, {name}: {case.difference(name):+.0%}"
        for case in cases
        for name in case.misses
    ]
    summary = f"{len(missed)} of {3 * len(cases)} figures differ by more than {validation.TOLERANCE:.0%}"
    title = "the service with workers that sleep, and its simulation"
    report.print_table(title, [case.row() for case in cases], [summary, *missed])
    return {"service": asdict(replica), "cases": [case.row() for case in cases], "missed": missed}


def main(
    scenario: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(SCENARIOS)}.")] = None,
    replicas: Annotated[
        str | None, typer.Option(help="Numbers of replicas; else the scenario's.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1000, help="Most, in runs without a set time.")] = 300_000,
    seed: int = 1,
    is_validation: Annotated[bool, typer.Option("--validate", help="Beside the real service.")] = False,
    model_dir: Annotated[Path, typer.Option("--model", help="Of the real service.")] = Path(
        "models/food11"
    ),
    sleep_ms: Annotated[float, typer.Option(min=1, help="Of the real service's workers.")] = 50,
    seconds: Annotated[float, typer.Option(min=1, help="Per case beside the real service.")] = 7,
    json_file: Annotated[Path | None, typer.Option("--json", help="All figures.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PLOT-SCENARIO.png and .svg.")] = None,
) -> None:
    """Simulates thousands of replicas: load balancing, retries, faults, autoscaling."""
    if unknown := set(scenario or ()) - set(SCENARIOS):
        raise typer.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(SCENARIOS)}")
    if is_validation:
        content: dict[str, Any] = validate(model_dir, sleep_ms, seconds)
        if json_file:
            write_results(json_file, report.command(), content)
        return
    service, scenarios = measured_service(), {}
    for name in scenario or SCENARIOS:
        chosen = SCENARIOS[name]
        for count in numbers(replicas) if replicas else [chosen.replicas]:
            runs = run(chosen, service, count, requests, seed)
            content = scenarios[f"{name}, {count} replicas"] = contents(chosen, count, runs)
            print_scenario(content)
            if plot:
                drawn = plot.with_name(f"{plot.name}-{name}-{count}")
                variants = content["variants"]
                report.save_picture(
                    drawn,
                    partial(pages.tails, variants=variants),
                    partial(pages.timelines, variants=variants),
                )
    if json_file:
        write_results(json_file, report.command(), {"service": asdict(service), "scenarios": scenarios})
