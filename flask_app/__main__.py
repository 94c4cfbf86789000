"""Serves the page: `python -m flask_app`. Reads the settings, builds the application and its server."""

import os
import signal

if __name__ == "__main__":  # before all imports: the kernel discards what process 1 has no handler for
    for early in (signal.SIGTERM, signal.SIGINT):
        signal.signal(early, lambda *_: os._exit(0))

import logging
import sys

from pydantic import ValidationError
from pydantic_settings import SettingsError

from flask_app.app import create_app
from flask_app.server import Server
from flask_app.settings import Settings

logger = logging.getLogger("flask_app")


def main() -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit status: 2 when a setting is wrong, else 0."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    for name in ("waitress", "httpx"):  # a line a request would hold up the page where nobody reads it
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = Settings()
        app = create_app(settings)
    except (ValidationError, SettingsError, OSError) as error:
        logger.error("the page cannot start: %s", in_words(error))
        return 2
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
