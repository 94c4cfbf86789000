"""Lists the sample images on the page; draw_samples.py draws them."""

from dataclasses import dataclass
from pathlib import Path

from flask_app.errors import UnknownSampleError
from flask_app.photos import Photo

FOLDER = Path(__file__).resolve().parent / "static" / "samples"


@dataclass(frozen=True)
class Sample:
    """Bundled image: its key in forms and its name for people."""

    key: str
    title: str

    @property
    def file(self) -> str:
        """Path under static/."""
        return f"samples/{self.key}.jpg"

    def read(self) -> Photo:
        """Reads the image as if a visitor had uploaded it."""
        return Photo(f"{self.key}.jpg", (FOLDER / f"{self.key}.jpg").read_bytes())


SAMPLES = (
    Sample("fried-egg", "Fried egg"),
    Sample("soup", "Soup"),
    Sample("bread", "Bread"),
    Sample("rice", "Rice bowl"),
    Sample("oranges", "Oranges"),
    Sample("noodles", "Noodles"),
)


def sample(key: str) -> Sample:
    """Returns the sample with this key. Raises UnknownSampleError."""
    for candidate in SAMPLES:
        if candidate.key == key:
            return candidate
    raise UnknownSampleError
