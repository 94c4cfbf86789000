"""A photo in any of the ways that a caller may have it -> its bytes."""

import asyncio
import os
from pathlib import Path
from typing import Protocol

from serving_client.errors import UnreadablePhotoError


class Readable(Protocol):
    """A binary file, an upload, a response: anything with `read`."""

    def read(self) -> bytes:
        """All that is left of it."""


Photo = bytes | bytearray | memoryview | str | os.PathLike[str] | Readable
"""The file's bytes, its path (also as str), or a binary file object."""


async def content(photo: Photo) -> bytes:
    """The bytes; a file is read on a thread. Raises UnreadablePhotoError."""
    if isinstance(photo, bytes):
        return photo
    if isinstance(photo, bytearray | memoryview):
        return bytes(photo)
    try:
        if isinstance(photo, str | os.PathLike):
            return await asyncio.to_thread(Path(photo).read_bytes)
        data = await asyncio.to_thread(photo.read)
    except (OSError, ValueError) as error:  # ValueError: a closed file, a NUL in a path
        raise UnreadablePhotoError(f"the photo cannot be read: {error}") from error
    if not isinstance(data, bytes):
        raise UnreadablePhotoError("the file was not opened in binary mode")
    return data
