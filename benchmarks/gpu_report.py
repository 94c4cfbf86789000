"""Tables of the figures that `gpu.py` measures, for the terminal and for docs/performance.md."""

from benchmarks.markdown import Cell, Content, fastest, table
from benchmarks.table import lines

ALONE: dict[str, Cell] = {
    "device alone": "{model}, {backend}",
    "precision": "{precision}",
    "launched as": lambda row: "graphs" if row["graphs"] else "kernels",
    "pictures/s": "{per_second:.0f}",
    "at batch": "{batch}",
}


def report(figures: Content) -> str:
    """Returns the tables of what was measured, as Markdown."""
    parts = ["{name}, {memory}, driver {driver}.".format(**figures["gpu"])]
    if "alone" in figures:
        kinds = fastest(figures["alone"], "model", "backend", "precision", "graphs")
        parts.append(table(kinds, ALONE))
    if "decoding" in figures:
        parts.append(
            "Decoding alone, in {processes} processes: {per_second:.0f}/s.".format(**figures["decoding"])
        )
    if "served" in figures:
        parts += [served(figures), *shares_of_device(figures)]
    if "peers" in figures:
        rows = lines(figures["peers"])
        parts.append(table(rows, {name: f"{{{name}}}" for name in rows[0]}))
    return "\n\n".join(parts)


def served(figures: Content) -> str:
    """Returns the table of the service's rates, its ratios to other figures, and its latencies."""
    decoding = figures.get("decoding", {"per_second": None})["per_second"]
    rows = []
    for row in figures["served"]:
        rate = row["raw"]["per_second"]
        row = {**row, "share": None, "base64": None, "p99": None, "median": None}
        if "json" in row:
            row["share"] = rate / decoding if decoding else None
            row["base64"] = row["json"]["per_second"] / rate
            row["p99"], row["median"] = row["half"]["p99"], row["most"]["p50"] / row["one"]["p50"]
        rows.append(row)
    columns: dict[str, Cell] = {
        "served": "{model}, {backend}",
        "256 connections, 1/s": "{raw[per_second]:.0f}",
        "p99, ms": "{raw[p99]:.1f}",
        "64 connections, 1/s": "{fewer[per_second]:.0f}",
        "p99 of 64, ms": "{fewer[p99]:.1f}",
        "of decoding alone": "{share:.2f}",
        "base64, of raw": "{base64:.2f}",
        "p99 at half, ms": "{p99:.1f}",
        "median at 80 %, of unloaded": "{median:.2f}",
    }
    return table(rows, columns)


def shares_of_device(figures: Content) -> list[str]:
    """Returns the service's share of the device's own throughput at the batch size it chose."""
    shares = []
    for entry in figures["served"]:
        described = entry["described"]
        kind = entry["model"], entry["backend"], described["precision"], described["max_batch_size"]
        same = [
            row["per_second"]
            for row in figures.get("alone", ())
            if (row["model"], row["backend"], row["precision"], row["batch"]) == kind
        ]
        if same:
            share = entry["raw"]["per_second"] / max(same)
            shares.append(f"{entry['model']}, {entry['backend']}: {share:.2f}")
    if not shares:
        return []
    return [f"Of the device's own throughput at the batch that was chosen: {'; '.join(shares)}."]
