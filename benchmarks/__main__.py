"""`python -m benchmarks COMMAND`."""

import typer

from benchmarks import backends, compare, jobs_command, model, overload, parts

app = typer.Typer(help=__doc__, no_args_is_help=True)
app.command("model")(model.main)
app.command("backends")(backends.main)
app.command("compare")(compare.main)
app.command("jobs")(jobs_command.main)
app.command("overload")(overload.main)
app.command("parts")(parts.main)

if __name__ == "__main__":
    app()
