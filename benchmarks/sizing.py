"""Calculates nodes, bandwidth and cost for docs/scale.md from the figures in `benchmarks/results/`."""

from math import ceil

from benchmarks.markdown import Content, markdown
from smallplates.settings import ROOT

NODE_CORES = {1_000: 8, 100_000: 32, 10_000_000: 64}
"""Pictures a second, and the cores of a node that is rented for them."""

ZONES = 3
BUSY = 0.9
"""Share of the capacity that may be used after a zone is lost."""

PLANNED = BUSY * (ZONES - 1) / ZONES
"""Share of the capacity that is used while no zone is lost."""

CELL = 100_000
BODY_BYTES = 30_000
BALANCER_GBITS = 10.0
SOURCE_GBITS = 1.0
PRICE = 0.04  # dollars for a core and hour
HOURS = 730  # of a month

ARITHMETIC = """
This is a calculation, not a measurement. A request costs {web:.2f} ms of CPU time in a web process; in
a worker it costs {workers} ([measured on two cores](performance.md#web-processes-and-more-cores)). So
a core handles this many requests a second: {cores}.

With {zones} zones, one of which may be lost, the plan uses {busy:.0%} x {left}/{zones} = {planned:.0%}
of this capacity: nodes = pictures a second / (cores of a node x requests a second of a core x
{planned:.2f}), rounded up to the same number in each zone.
"""

ASSUMED = f"""
Assumptions: bodies of {BODY_BYTES / 1000:.0f} KB (the sample photos as files; base64 in JSON is a
third larger), load balancers with {BALANCER_GBITS:.0f} Gbit/s, {SOURCE_GBITS:.0f} Gbit/s from each
source of model files, {PRICE} dollars per core and hour, no charge for traffic or storage. For your
own figures, edit `benchmarks/sizing.py` and run `make docs-tables`.
"""


def nodes_for(rate: float, node_rate: float) -> int:
    """Returns the number of nodes, the same in each zone, that answer a rate after a zone is lost."""
    return ZONES * ceil(rate / (node_rate * PLANNED) / ZONES)


def gigabits(rate: float) -> float:
    """Returns the bandwidth of the request bodies in Gbit/s."""
    return rate * BODY_BYTES * 8 / 1e9


def nodes_and_cost(precision: str, core_rate: float) -> list[list[str]]:
    """Returns the rows of one precision; a core answers `core_rate` a second."""
    nodes = {rate: nodes_for(rate, core_rate * cores) for rate, cores in NODE_CORES.items()}
    cores = {rate: count * NODE_CORES[rate] for rate, count in nodes.items()}
    dollars = {rate: count * PRICE for rate, count in cores.items()}  # an hour
    return [
        [f"nodes, {precision}", *(f"{count:,}" for count in nodes.values())],
        [f"cores, {precision}", *(f"{count:,}" for count in cores.values())],
        [f"dollars a month, {precision}", *(f"{HOURS * cost:,.0f}" for cost in dollars.values())],
        [
            f"dollars a million pictures, {precision}",
            *(f"{1e6 * cost / (3600 * rate):.2f}" for rate, cost in dollars.items()),
        ],
    ]


def network(core_rate: float) -> list[list[str]]:
    """Returns the rows on bandwidth and model files, for nodes in fp32."""
    megabytes = (ROOT / "models" / "food11" / "1" / "model.onnx").stat().st_size / 1e6
    cells = [ceil(rate / CELL) for rate in NODE_CORES]
    copied = [
        nodes_for(rate, core_rate * cores) * megabytes / 1000 for rate, cores in NODE_CORES.items()
    ]
    seconds = [8 * size / SOURCE_GBITS / count for size, count in zip(copied, cells, strict=True)]
    balancers = [1 + ceil(gigabits(rate) / BALANCER_GBITS) for rate in NODE_CORES]
    return [
        ["bodies, Gbit/s", *(f"{gigabits(rate):,.2f}" for rate in NODE_CORES)],
        ["load balancers, one of them spare", *(f"{count:,}" for count in balancers)],
        [f"cells of {CELL:,} a second", *(f"{count:,}" for count in cells)],
        ["model files to distribute, GB", *(f"{size:,.2f}" for size in copied)],
        ["seconds for that, one source in each cell", *(f"{took:,.1f}" for took in seconds)],
    ]


def sizing(scale: Content) -> str:
    """Returns the arithmetic and a table; `scale` is the results file of `benchmarks scale`."""
    web, workers = scale["results"]["web_ms"], scale["results"]["worker_ms"]
    core_rates = {name: 1000 / (web + ms) for name, ms in workers.items()}
    said = ARITHMETIC.strip().format(
        web=web,
        workers=", ".join(f"{ms:.2f} ms in {name}" for name, ms in workers.items()),
        cores=", ".join(
            f"1000 / ({web:.2f} + {workers[name]:.2f}) = {rate:.0f} in {name}"
            for name, rate in core_rates.items()
        ),
        zones=ZONES,
        left=ZONES - 1,
        busy=BUSY,
        planned=PLANNED,
    )
    rows = [["cores of a node", *map(str, NODE_CORES.values())]]
    rows += [row for name, rate in core_rates.items() for row in nodes_and_cost(name, rate)]
    rows += network(core_rates["fp32"])
    head = ["pictures a second", *(f"{rate:,}" for rate in NODE_CORES)]
    return "\n\n".join([said, markdown(head, rows), ASSUMED.strip()])
