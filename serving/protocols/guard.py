"""Access by key, for every front-end."""

import hmac

from fastapi import Request, Security, params
from fastapi.security import HTTPBearer
from pydantic import SecretStr

from serving.errors import UnauthorizedError

BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # for the documents; see `KeyCheck`


class KeyCheck:
    """Compares the bearer token in constant time; without a key, everything is allowed."""

    def __init__(self, key: SecretStr | None) -> None:
        self._key = key.get_secret_value().encode() if key else None

    def __call__(self, request: Request) -> None:
        """Raises UnauthorizedError."""
        self.check(request.headers.get("authorization", ""))

    def check(self, authorization: str) -> None:
        """The header's value, or that of gRPC's metadata. Raises UnauthorizedError."""
        if self._key is None:
            return
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("latin-1", "replace")
        if scheme.lower() != "bearer" or not self.is_right(given):
            raise UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY")

    def is_right(self, given: bytes) -> bool:
        """Whether the key is this one; True where none is needed."""
        return self._key is None or hmac.compare_digest(given, self._key)

    def documented(self) -> list[params.Depends]:
        """What makes Swagger offer to authorize; the check itself is the handler's.

        FastAPI would read a body, however large, before it asks a dependency.
        """
        return [Security(BEARER)] if self._key is not None else []
