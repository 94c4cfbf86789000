"""The model repository extension: which versions there are, and which one is served.

There is one model, so that loading means to switch versions, and unloading is refused.
"""

from typing import Annotated, Any

import msgspec

from serving.errors import ConfigurationError, InvalidRequestError, NotSupportedError
from serving.inference.service import Classifier
from serving.logging import logger
from serving.model import Model
from serving.protocols.admission import KeyCheck
from serving.protocols.catalog import ModelCatalog
from serving.protocols.v2.codec import decoded

MAX_VERSIONS = 1000
Version = Annotated[int, msgspec.Meta(ge=1, le=10**10 - 1)]


class IndexRequest(msgspec.Struct):
    """The body of an index request, which may be empty."""

    ready: bool = False


class Specific(msgspec.Struct):
    """Of a configuration's `version_policy`."""

    versions: Annotated[list[Version], msgspec.Meta(min_length=1, max_length=1)]


class VersionPolicy(msgspec.Struct):
    """Of a configuration."""

    specific: Specific | None = None


class LoadConfig(msgspec.Struct):
    """What counts of the configuration that a client sends as text."""

    version_policy: VersionPolicy | None = None


class LoadParameters(msgspec.Struct, forbid_unknown_fields=True):
    """`version` is ours; `config` is what Triton's clients send. The files of a model are not taken."""

    version: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,9}$")] | None = None
    config: str | None = None


class LoadRequest(msgspec.Struct):
    """The body of a load request, which may be empty."""

    parameters: LoadParameters | None = None


INDEX = msgspec.json.Decoder(IndexRequest)
LOAD = msgspec.json.Decoder(LoadRequest)
CONFIG = msgspec.json.Decoder(LoadConfig)


class Repository:
    """Bound to one classifier."""

    def __init__(self, classifier: Classifier, models: ModelCatalog) -> None:
        self._classifier = classifier
        self._models = models
        self._check_admin = KeyCheck(classifier.settings.admin_key)

    def check_allowed(self, authorization: str) -> None:
        """Before loading and unloading. Raises NotSupportedError or UnauthorizedError."""
        if self._classifier.settings.admin_key is None:
            raise NotSupportedError("models are loaded only where SERVING_ADMIN_KEY is set")
        self._check_admin.check(authorization)

    def index(self, only_ready: bool) -> list[dict[str, Any]]:
        """Every name with its versions, the one in service READY."""
        served = self._classifier.served.handle.model.description.version
        folder = self._classifier.settings.model_dir
        found = {each.name for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()}
        others = [] if only_ready else sorted(found - {served}, key=int)[:MAX_VERSIONS]
        return [
            {"name": name, "version": version, "state": state, "reason": reason}
            for name in self._models.kinds
            for version, state, reason in (
                (served, "READY", ""),
                *((other, "UNAVAILABLE", "not loaded") for other in others),
            )
        ]

    async def load(self, name: str, body: bytes) -> None:
        """Serves the version that is asked for, or the one that model.json names.

        Raises NotFoundError, InvalidJsonError or InvalidRequestError.
        """
        self._models.find(name)
        version = wanted_version(body)
        try:
            if version is None:
                version = Model.read(self._classifier.settings.model_dir).description.version
            await self._classifier.switch(version)
        except ConfigurationError as error:
            raise InvalidRequestError(f"version {version} cannot be served: {error}") from error
        logger().warning("version switched", version=version)

    def unload(self, name: str) -> None:
        """Raises NotFoundError, or NotSupportedError always."""
        self._models.find(name)
        raise NotSupportedError(f"{name} is the only model and stays loaded; load another version of it")


def only_ready(body: bytes) -> bool:
    """Of an index request. Raises InvalidJsonError or InvalidRequestError."""
    request: IndexRequest = decoded(INDEX, body or b"{}")
    return request.ready


def wanted_version(body: bytes) -> str | None:
    """Of a load request. Raises InvalidJsonError or InvalidRequestError."""
    request: LoadRequest = decoded(LOAD, body or b"{}")
    parameters = request.parameters
    if parameters is None:
        return None
    if parameters.version is not None:
        return parameters.version
    if parameters.config is None:
        return None
    config: LoadConfig = decoded(CONFIG, parameters.config.encode())
    specific = config.version_policy.specific if config.version_policy else None
    return str(specific.versions[0]) if specific else None
