"""The layer between Serve and the application, for what both would do."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

WATCH_IS_OFF = (b"x-request-disconnect-disabled", b"?1")


class RayMiddleware:
    """Leaves to Serve: the request id's header, the watch for a client that leaves, the route prefix."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on with the path below the prefix, and its answer without X-Request-ID.

        Serve gives a request without an id one, before it comes here, and sends the header itself.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    header for header in message["headers"] if header[0] != b"x-request-id"
                ]
            await send(message)

        scope["path"] = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if WATCH_IS_OFF not in scope["headers"]:  # else Serve cancels this task when the client leaves
            scope["disconnect"] = asyncio.get_running_loop().create_future()
        await self.app(scope, receive, send_without_id)
