"""`smallplates COMMAND`, or `python -m smallplates COMMAND`."""

import signal
import sys


def main() -> None:
    """Runs the command that the arguments name."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback if Ctrl-C comes during the imports
    from smallplates.system.python import fill_standard_streams
    from smallplates.system.signals import end_on_signals

    if sys.argv[1:2] == ["serve"]:
        end_on_signals()
    fill_standard_streams()
    from smallplates.cli.commands import app

    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app(prog_name="smallplates")
    except OSError as error:  # of the help, if standard output takes nothing; commands report their own
        sys.exit(f"smallplates: {error.strerror}")


if __name__ == "__main__":
    main()
