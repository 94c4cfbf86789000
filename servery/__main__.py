"""`servery COMMAND`, or `python -m servery COMMAND`."""

import sys


def main() -> None:
    """Runs the command that the arguments name."""
    from serving.system.signals import end_on_signals

    if sys.argv[1:2] == ["serve"]:
        end_on_signals()
    from servery.commands import app

    app(prog_name="servery")


if __name__ == "__main__":
    main()
