"""`python -m benchmarks COMMAND`."""

import typer

from benchmarks import backends, compare, model

app = typer.Typer(help=__doc__, no_args_is_help=True)
app.command("model")(model.main)
app.command("backends")(backends.main)
app.command("compare")(compare.main)

if __name__ == "__main__":
    app()
