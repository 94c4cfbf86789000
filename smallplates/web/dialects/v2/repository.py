"""The model repository extension: lists, loads and unloads models and versions."""

import asyncio
from contextlib import suppress
from typing import Annotated, Any

import msgspec

from smallplates.errors import ConfigurationError, InvalidRequestError, NotFoundError, NotSupportedError
from smallplates.models.folder import Model, stored_models
from smallplates.web.api.catalog import ModelCatalog
from smallplates.web.api.pipeline import KeyCheck
from smallplates.web.http.body import decode_json
from smallplates.web.inference.service import InferenceService

MAX_VERSIONS = 1000
Version = Annotated[int, msgspec.Meta(ge=1, le=10**10 - 1)]


class IndexRequest(msgspec.Struct):
    """The body of an index request, which may be empty."""

    ready: bool | None = False


class Specific(msgspec.Struct, forbid_unknown_fields=True):
    """`specific` of a configuration's `version_policy`."""

    versions: Annotated[list[Version], msgspec.Meta(min_length=1, max_length=1)]


class VersionPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """`version_policy` of a configuration."""

    specific: Specific | None = None


class LoadConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The part of a client's configuration that is applied; the rest is refused."""

    version_policy: VersionPolicy | None = None


class LoadParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters of a load: `version` is ours, `config` comes from Triton's clients."""

    version: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{0,9}$")] | None = None
    config: str | None = None


class LoadRequest(msgspec.Struct):
    """The body of a load request, which may be empty."""

    parameters: LoadParameters | None = None


INDEX = msgspec.json.Decoder(IndexRequest)
INDEX_SCHEMA = msgspec.json.schema(IndexRequest)
LOAD = msgspec.json.Decoder(LoadRequest)
CONFIG = msgspec.json.Decoder(LoadConfig)


class Repository:
    """Lists, loads and unloads models."""

    def __init__(self, service: InferenceService, catalog: ModelCatalog) -> None:
        self._service = service
        self._catalog = catalog
        self._check_admin = KeyCheck(service.settings.admin_key, "admin")
        keys = (service.settings.api_key, service.settings.admin_key)
        self._keys = [KeyCheck(key) for key in keys if key]

    def check_allowed(self, authorization: str) -> None:
        """Checks the admin key. Raises NotSupportedError if none is set, or UnauthorizedError."""
        if self._service.settings.admin_key is None:
            raise NotSupportedError("models can be loaded only if SERVING_ADMIN_KEY is set")
        self._check_admin.check(authorization)

    async def index(self, only_ready: bool, authorization: str) -> list[dict[str, Any]]:
        """Lists every name with its versions, and the folders in the store; reads their descriptions.

        Versions in service are READY, also if they are asleep, as the reason then says. If a key is set,
        requests without one of the keys see no reasons, and no folders in the store.
        """
        is_trusted = not self._keys or any(key.accepts(authorization) for key in self._keys)
        rows = await asyncio.to_thread(self._index, only_ready, is_trusted)
        return rows if is_trusted else [row | {"reason": ""} for row in rows]

    def _index(self, only_ready: bool, with_store: bool) -> list[dict[str, Any]]:
        service = self._service
        rows = []
        for entry in self._catalog.entries.values():
            rows.append((entry.name, entry.version, "READY", entry.model.asleep))
            versions = entry.model.handle.model.versions[:MAX_VERSIONS]
            others = [version for version in versions if version != entry.version]
            rows += [(entry.name, other, "UNAVAILABLE", "not loaded") for other in others]
        for own, model in service.known.items():
            if own not in service.models:
                reason = service.reasons.get(own, "")
                state = ("UNAVAILABLE" if reason else "LOADING", reason)
                rows += [(name, model.description.version, *state) for name in model.names]
        for name, path in stored_models(service.settings).items() if with_store else ():
            if name not in service.known:
                try:
                    version, reason = Model.read(path, name=name).description.version, "not loaded"
                except ConfigurationError as error:
                    version, reason = "", str(error)
                rows.append((name, version, "UNAVAILABLE", reason))
        return [
            {"name": name, "version": version, "state": state, "reason": reason}
            for name, version, state, reason in rows
            if state == "READY" or not only_ready
        ]

    async def load(self, name: str, body: bytes) -> None:
        """Serves the version requested in the body, by default the one in model.json.

        The model must be configured or in the store. Raises NotFoundError, InvalidJsonError or
        InvalidRequestError.
        """
        version = version_to_load(body)
        with suppress(NotFoundError):  # otherwise it is a folder's name in the store
            name = self._catalog.owner(name)
        await self._service.load(name, version)

    async def unload(self, name: str) -> None:
        """Takes a model out of service. Raises NotFoundError or UnavailableError."""
        await self._service.unload(self._catalog.owner(name))


def only_ready(body: bytes) -> bool:
    """Parses an index request. Raises InvalidJsonError or InvalidRequestError."""
    request: IndexRequest = decode_json(INDEX, body or b"{}")
    return bool(request.ready)


def version_to_load(body: bytes) -> str | None:
    """Parses a load request. Raises InvalidJsonError or InvalidRequestError."""
    request: LoadRequest = decode_json(LOAD, body or b"{}")
    parameters = request.parameters or LoadParameters()
    if parameters.config is None:
        return parameters.version
    name = "config (only version_policy.specific is applied)"
    config: LoadConfig = decode_json(CONFIG, parameters.config.encode(), name)
    specific = config.version_policy.specific if config.version_policy else None
    version = str(specific.versions[0]) if specific else parameters.version
    if parameters.version not in (None, version):
        raise InvalidRequestError(f"version is {parameters.version}, but {version} in config")
    return version
