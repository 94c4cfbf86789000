"""Reads the bytes of a photo, in whatever form the caller has it."""

import asyncio
import os
from pathlib import Path
from typing import Protocol

from smallplates.client.errors import UnreadablePhotoError


class Readable(Protocol):
    """Binary file, upload or response: any object with `read`."""

    def read(self) -> bytes:
        """Returns the remaining bytes."""


Photo = bytes | bytearray | memoryview | str | os.PathLike[str] | Readable
"""Bytes of the file, its path (also as str), or a binary file object."""


async def content(photo: Photo) -> bytes:
    """Returns the bytes; reads files on a thread. Raises UnreadablePhotoError."""
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
