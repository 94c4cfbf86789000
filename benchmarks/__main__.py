"""`python -m benchmarks COMMAND`; `smallplates load` measures any running server."""

import sys

import typer

try:
    from benchmarks import (
        backends,
        bench,
        compare,
        gpu,
        holds,
        jobs_command,
        limit,
        lock,
        model,
        neighbours,
        overload,
        parts,
        plots,
        ray,
        scale,
        stress,
        waits,
    )
except ModuleNotFoundError as error:
    sys.exit(f"benchmarks: {error.name} is not installed; run: make .venv/dev-all.installed")

app = typer.Typer(help=__doc__, no_args_is_help=True)
app.command("bench")(bench.main)
app.command("limit")(limit.main)
app.command("lock")(lock.main)
app.command("stress")(stress.main)
app.command("model")(model.main)
app.command("backends")(backends.main)
app.command("compare")(compare.main)
app.command("holds")(holds.main)
app.command("jobs")(jobs_command.main)
app.command("neighbours")(neighbours.main)
app.command("overload")(overload.main)
app.command("parts")(parts.main)
app.command("ray")(ray.main)
app.command("scale")(scale.main)
app.command("waits")(waits.main)
app.command("gpu")(gpu.main)
app.command("plots")(plots.main)

if __name__ == "__main__":
    app()
