"""Reads images out of the current request: the files of a form, or the body itself."""

from flask import request

from flask_app.errors import UploadError
from flask_app.photos import Photo, harmless_name

FIELDS = ("photo", "image", "file")


def uploads() -> list[Photo]:
    """Returns the files of a form; skips file inputs that were left empty."""
    files = [file for field in FIELDS for file in request.files.getlist(field)]
    return [Photo(harmless_name(file.filename), file.read()) for file in files if file.filename]


def one_upload() -> Photo:
    """Returns the single file of a form, or the body. Raises UploadError."""
    kind = request.mimetype
    if kind == "multipart/form-data":
        photos = uploads()
        if len(photos) != 1:
            raise UploadError("no_photo", "send a form with one photo")
        return photos[0]
    if kind and not kind.startswith("image/") and kind != "application/octet-stream":
        raise UploadError("unsupported_media_type", f"{harmless_name(kind)} is not a photo")
    return Photo("photo", request.get_data(cache=False))
