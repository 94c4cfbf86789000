"""Tables of the figures that `gpu.py` measures, for the terminal and for docs/performance.md."""

from typing import Any

from benchmarks import table
from benchmarks.markdown import markdown

Row = dict[str, Any]


def markdown_of(figures: Row) -> str:
    """Returns all tables as Markdown."""
    gpu = figures["gpu"]
    parts = [f"{gpu['name']}, {gpu['memory']}, driver {gpu['driver']}.", alone(figures["alone"])]
    parts += [served(figures), *shares_of_device(figures)]
    if "peers" in figures:
        head, *rows = (list(line) for line in (table.HEAD, *table.lines(figures["peers"])))
        parts.append(markdown(head, rows))
    return "\n\n".join(parts)


def alone(rows: list[Row]) -> str:
    """Returns the table of the best batch of each backend, precision and way to launch kernels."""
    kinds = dict.fromkeys((r["model"], r["backend"], r["precision"], r["graphs"]) for r in rows)
    lines = []
    for kind in kinds:
        same = [r for r in rows if (r["model"], r["backend"], r["precision"], r["graphs"]) == kind]
        best = max(same, key=lambda row: float(row["per_second"]))
        name, backend, precision, graphs = kind
        launched = "graphs" if graphs else "kernels"
        lines.append(
            [f"{name}, {backend}", precision, launched, f"{best['per_second']:.0f}", str(best["batch"])]
        )
    return markdown(["device alone", "precision", "launched as", "pictures/s", "at batch"], lines)


def served(figures: Row) -> str:
    """Returns the table of the service's rates, its ratios to other figures, and its latencies."""
    decoding = figures["decoding"]["per_second"]
    lines = []
    for row in figures["served"]:
        raw = row["raw"]["per_second"]
        cells = [f"{row['model']}, {row['backend']}", f"{raw:.0f}", f"{raw / decoding:.2f}"]
        if "json" in row:
            cells += [
                f"{row['json']['per_second'] / raw:.2f}",
                f"{row['half']['p99']:.1f}",
                f"{row['most']['p50'] / row['one']['p50']:.2f}",
            ]
        lines.append([*cells, *[""] * (6 - len(cells))])
    head = [
        "served, 256 connections",
        "raw JPEG, 1/s",
        f"of decoding alone ({decoding:.0f}/s)",
        "base64, of raw",
        "p99 at half, ms",
        "median at 80 %, of unloaded",
    ]
    return markdown(head, lines)


def shares_of_device(figures: Row) -> list[str]:
    """Returns the service's share of the device's own throughput at the batch size it chose."""
    shares = []
    for entry in figures["served"]:
        described = entry["described"]
        same = [
            row["per_second"]
            for row in figures["alone"]
            if (row["model"], row["backend"], row["precision"], row["batch"])
            == (entry["model"], entry["backend"], described["precision"], described["max_batch_size"])
        ]
        if same:
            share = entry["raw"]["per_second"] / max(same)
            shares.append(f"{entry['model']}, {entry['backend']}: {share:.2f}")
    if not shares:
        return []
    return [f"Of the device's own throughput at the batch that was chosen: {'; '.join(shares)}."]
