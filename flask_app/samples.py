"""Samples of the models in `models/`: images drawn by training/draw_samples.py, and sentences."""

from dataclasses import dataclass
from pathlib import Path

from flask_app.errors import UploadError
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
    Sample("soup", "Soup"),
    Sample("eggs", "Eggs"),
    Sample("bread", "Bread"),
    Sample("rice", "Rice bowl"),
    Sample("oranges", "Oranges"),
    Sample("noodles", "Noodles"),
)
TEXTS = (
    "A funny, warm and wonderful film.",
    "Two hours too long, and the jokes were stale.",
    "The film lasts two hours and is in black and white.",
)
OF_VIEWS: dict[str, dict[str, tuple[Sample, ...] | tuple[str, ...]]] = {
    "photos": {"food11": SAMPLES, "food_classifier_onnx": SAMPLES},
    "text": {"sentiment": TEXTS},
}
"""View -> name of a model -> its samples; all other models have none."""


def sample(key: str) -> Sample:
    """Returns the sample with this key. Raises UploadError."""
    for candidate in SAMPLES:
        if candidate.key == key:
            return candidate
    raise UploadError("unknown_sample")
