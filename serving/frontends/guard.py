"""Access by key, for every front-end."""

import hmac

from fastapi import Depends, Request, Security, params
from fastapi.security import HTTPBearer

from serving.errors import UnauthorizedError

BEARER = HTTPBearer(scheme_name="bearer", auto_error=False)  # for the documents; see `guard`


def guard(key: str | None) -> list[params.Depends]:
    """The dependency that compares the bearer token in constant time; none without a key."""
    if key is None:
        return []

    async def authorize(request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, key.encode()):
            raise UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY")

    return [Security(BEARER), Depends(authorize)]
