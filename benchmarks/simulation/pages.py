"""Renders results of `python -m benchmarks simulate` as Markdown for docs/scale.md, and as plots."""

from typing import TYPE_CHECKING, Any

from benchmarks.markdown import Content, markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD = ("offered/s", "answered/s", "p50 ms", "p99 ms", "503", "failed", "tries", "busy", "busiest")
MEASURED = ("p50 ms", "p99 ms", "503")


def shown(name: str, value: float) -> str:
    """Returns a figure with its digits: shares in percent, rates and times rounded."""
    if name in ("503", "failed", "busy", "busiest"):
        return f"{value:.1%}"
    return f"{value:.2f}" if name == "tries" else f"{value:,.0f}"


def scenarios(content: Content) -> str:
    """Returns a heading, a result and a table for each scenario."""
    parts = []
    for scenario in content["results"]["scenarios"].values():
        rows = [
            [name, *(shown(key, variant["figures"][key]) for key in HEAD)]
            for name, variant in scenario["variants"].items()
        ]
        title = scenario["title"][0].upper() + scenario["title"][1:]
        line = next(iter(scenario["variants"].values()))["timeline"]
        seconds = line["bin_s"] * len(line["answered"])
        simulated = f"Simulated time: {seconds:.3g} s, starting with idle replicas."
        parts += [f"### {title}, {scenario['replicas']:,} replicas", f"{scenario['result']} {simulated}"]
        parts += [markdown(["", *HEAD], rows)]
    return "\n\n".join(parts)


def validation(content: Content) -> str:
    """Returns the measured figures beside the simulated ones, and what they miss."""
    rows = []
    for case in content["results"]["cases"]:
        pairs = [
            " / ".join(shown(name, case[f"{name}, {kind}"]) for kind in ("measured", "simulated"))
            for name in MEASURED
        ]
        cells = [str(case["replicas"]), f"{case['load']:.0%}", str(case["tries"])]
        rows.append([*cells, *pairs, case["largest difference"], case["machine busy"]])
    pairs = [f"{name}: measured / simulated" for name in MEASURED]
    head = ["replicas", "load", "most tries", *pairs, "largest difference", "machine busy"]
    missed = content["results"]["missed"]
    said = "; ".join(missed) if missed else "none"
    return f"{markdown(head, rows)}\n\nFigures that differ by more than 15 %: {said}."


def timelines(axes: "Axes", variants: dict[str, Any]) -> None:
    """Draws the requests a second over time, one line a variant; tries are dotted."""
    for name, variant in variants.items():
        line = variant["timeline"]
        bin_s = line["bin_s"]
        times = [bin_s * (number + 0.5) for number in range(len(line["answered"]))]
        (drawn,) = axes.plot(times, [count / bin_s for count in line["answered"]], label=name)
        axes.plot(times, [count / bin_s for count in line["tries"]], ":", color=drawn.get_color())
    axes.set(xlabel="s", ylabel="requests a second (dotted: tries)", ylim=(0, None))
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def tails(axes: "Axes", variants: dict[str, Any]) -> None:
    """Draws p50 and p99 of every variant."""
    names = list(variants)
    for key, colour in (("p99 ms", "tab:blue"), ("p50 ms", "tab:cyan")):
        values = [variant["figures"][key] for variant in variants.values()]
        axes.barh(names, values, color=colour, label=key)
    axes.invert_yaxis()
    axes.set_xlabel("latency in ms")
    axes.legend()
    axes.grid(alpha=0.3, axis="x")


def hot_replicas(axes: "Axes", content: Content) -> None:
    """Draws the latencies of each policy, from the first scenario on load balancing."""
    tails(axes, variants_of(content, "balancing"))


def retry_storm(axes: "Axes", content: Content) -> None:
    """Draws answers and tries during and after a surge."""
    timelines(axes, variants_of(content, "retry-storm"))


def variants_of(content: Content, scenario: str) -> dict[str, Any]:
    """Returns the variants of a scenario, of its first number of replicas."""
    by_name: dict[str, dict[str, Any]] = content["results"]["scenarios"]
    return next(named["variants"] for name, named in by_name.items() if name.startswith(scenario))
