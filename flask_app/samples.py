"""Lists the samples on the page: images drawn by training/draw_samples.py, sentences, and questions."""

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
    Sample("eggs", "Eggs"),
    Sample("soup", "Soup"),
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


def question(asked: str, context: str) -> dict[str, str]:
    """Returns what an example fills in: a question, and a text that answers it."""
    return {"context": context, "question": asked}


PARAGRAPHS = (
    question(
        "Where was the tomato first grown?",
        "The tomato comes from the west of South America, and it was in Mexico that people first grew "
        "it for food. Spanish ships brought it to Europe in the sixteenth century. For a long time it "
        "was an ornament there, because many people thought it was poisonous.",
    ),
    question(
        "How long does the dough rest?",
        "Mix the flour with the water and leave it alone for half an hour. Then work in the salt and "
        "the yeast, fold the dough four times, and let it rest for twelve hours in a cool place. Bake "
        "the bread at 240 degrees, for the first twenty minutes under a lid.",
    ),
    question(
        "Who built the bridge?",
        "Two villages share the river, and for two hundred years they shared a ferry, too. The bridge "
        "was built in 1902 by Anna Lindqvist, an engineer from Gothenburg, who paid for its lamps out "
        "of her own pocket. The ferryman became its first guard.",
    ),
)

EMBEDDINGS = tuple(
    {"text": "\n".join(texts)}
    for texts in (
        (
            "How do I bake bread without yeast?",
            "A recipe for soda bread",
            "My bicycle has a flat tyre.",
            "Where can I get a puncture repaired?",
            "The last train leaves at nine.",
        ),
        (
            "I forgot my password.",
            "How can I get back into my account?",
            "Please send me an invoice.",
            "Where do I find the receipt?",
            "Can I change my delivery address?",
        ),
    )
)

RANKINGS = (
    {
        "query": "How long does bread keep?",
        "texts": "Bread is best stored in a paper bag, and never in the refrigerator.\n"
        "A sourdough loaf stays fresh for about five days, a baguette for one.\n"
        "The bakery opens at six and closes when everything is sold.\n"
        "Rye flour takes up more water than wheat flour.",
    },
    {
        "query": "Can I take my bicycle on the train?",
        "texts": "Tickets are sold at the counter, and by the guard on the train.\n"
        "Bicycles travel in the last coach; each needs a ticket of its own.\n"
        "The path along the river is closed to bicycles until May.\n"
        "Trains to the coast leave every hour.",
    },
)

EXAMPLES = {"question": PARAGRAPHS, "embedding": EMBEDDINGS, "ranking": RANKINGS}
"""View -> what its examples fill in. A button says the field that names the request, else the text."""


def sample(key: str) -> Sample:
    """Returns the sample with this key. Raises UploadError."""
    for candidate in SAMPLES:
        if candidate.key == key:
            return candidate
    raise UploadError("unknown_sample")
