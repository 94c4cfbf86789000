"""Serves the page: `python -m flask_app`. Reads the settings, builds the application and its server."""

import os
import signal

if __name__ == "__main__":  # before all imports: the kernel discards what process 1 has no handler for
    for early in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if early != signal.SIGHUP or signal.getsignal(early) is not signal.SIG_IGN:  # nohup
            signal.signal(early, lambda *_: os._exit(0))

import logging
import re
import sys
from difflib import get_close_matches

from pydantic import ValidationError
from pydantic_settings import SettingsError

from flask_app.app import create_app
from flask_app.server import Server
from flask_app.settings import Settings

logger = logging.getLogger("flask_app")

FORMAT = "%(asctime)s page       %(levelname)s%(message)s"
"""As the service's lines on a terminal: time, who says it, text."""

NOT_OURS = re.compile(
    r"UI_MEMORY=.*"
    r"|UI_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_\w+)=.*|\w+=(tcp|udp|sctp)://.*",
    re.DOTALL,
)
"""Variables of the compose files, and of Kubernetes for a Service `ui-...`."""


def main() -> int:
    """Serves until a signal. Returns the exit status: 2 when a setting is wrong, else 0."""
    for level, prefix in (("INFO", ""), ("WARNING", "warning: "), ("ERROR", "error: ")):
        logging.addLevelName(getattr(logging, level), prefix)
    logging.basicConfig(level=logging.INFO, format=FORMAT, datefmt="%H:%M:%S")
    for name in ("waitress", "httpx"):  # a line a request would hold up the page where nobody reads it
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = Settings()
        app = create_app(settings)
    except (ValidationError, SettingsError, OSError) as error:
        logger.error("the page cannot start: %s", in_words(error))
        return 2
    warn_of_unknown_variables()
    try:
        server = Server(app, settings)
    except (OSError, ValueError) as error:
        place = f"UI_HOST={settings.host} UI_PORT={settings.port}"
        reason = getattr(error, "strerror", None) or error
        logger.error("the page cannot start: cannot listen on %s: %s", place, reason)
        return 2
    try:
        server.serve()
    finally:
        app.extensions["api"].close()
    return 0


def warn_of_unknown_variables() -> None:
    """Logs a line for each UI_ variable that has no effect, with the setting whose name is nearest."""
    fields = [field.upper() for field in Settings.model_fields]
    for name, value in os.environ.items():
        prefix, _, own = name.upper().partition("_")
        if prefix == "UI" and own not in fields and not NOT_OURS.fullmatch(f"{name}={value}"):
            nearest = "".join(f"; the nearest is UI_{n}" for n in get_close_matches(own, fields, 1))
            logger.warning("no setting has the name %s%s", name, nearest)


def in_words(error: ValidationError | SettingsError | OSError) -> str:
    """Describes a wrong setting in one line, by its variable's name and without its value."""
    if isinstance(error, SettingsError):
        return f"UI_SECRETS_DIR cannot be read: {error}"
    if isinstance(error, OSError):
        return str(error)
    problems = error.errors(include_url=False, include_input=False)
    return "; ".join(f"UI_{str(problem['loc'][0]).upper()}: {problem['msg']}" for problem in problems)


if __name__ == "__main__":
    sys.exit(main())
