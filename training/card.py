"""Model cards: a template filled with the figures of model.json, and the training's log beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

from smallplates.export.int8_verdict import Verdict
from smallplates.models.description import ModelDescription
from smallplates.models.folder import Model


def write(out: Path, template: Path, run: Path, more: dict[str, Any]) -> None:
    """Writes MODEL_CARD.md and training.jsonl into a model's folder.

    The template may name every figure, such as `$val_top1`, beside `$hours`, `$epochs`, `$int8_rows` and
    what is in `more`.
    """
    description = Model.read(out).description
    lines = list(epochs_of(run))
    (out / "training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    figures = {
        f"{kind}_{name}": str(value) if name in ("photos", "texts", "questions") else percent(value)
        for kind, measured in description.accuracy.items()
        if isinstance(measured, dict)
        for name, value in measured.items()
    }
    text = Template(template.read_text()).substitute(
        figures,
        hours=f"{sum(line['seconds'] for line in lines) / 3600:.1f}",
        epochs=len(lines),
        int8_rows="\n".join(int8_rows(description)),
        **more,
    )
    (out / "MODEL_CARD.md").write_text(text)


def epochs_of(run: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of the logs of a run; an epoch that was run twice counts once."""
    for path in sorted(run.rglob("log.jsonl")):
        read = map(json.loads, path.read_text().splitlines())
        lines = {(line.get("network"), line["epoch"]): line for line in read}
        for line in lines.values():
            yield line if path.parent == run else {"network": path.parent.name, **line}


def percent(share: float) -> str:
    """Returns a share in words."""
    return f"{100 * share:.1f} %"


def int8_rows(description: ModelDescription) -> Iterator[str]:
    """Yields a row of the card's table for each int8 file."""
    for name, kept in description.int8.items():
        verdict = Verdict.of(kept)
        accuracy = " | ".join(percent(verdict.accuracy[key]) for key in ("fp32", "int8"))
        times = " | ".join(f"{verdict.batch_ms[key][1]:.1f} ms" for key in ("fp32", "int8"))
        fit = "fit" if verdict.fit else "not fit"
        agreement = f"{percent(verdict.agreement)}, {fit}"
        yield f"| {name} | {verdict.method} | {accuracy} | {agreement} | {times} |"
