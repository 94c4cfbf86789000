"""A task of another package: one file, with its row; `tests/e2e/test_tasks.py` serves it."""

from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, Field

from smallplates.models.task_kinds import TaskKind
from smallplates.tasks.base import Candidate, Outputs, Prepared, fields_of
from smallplates.tasks.text import TextTask


class TextRequest(BaseModel):
    """A text."""

    text: str = Field(min_length=1)


class Count(BaseModel):
    """How many tokens it has."""

    tokens: int


class TokenCount(TextTask):
    """Adds up a network's states, one of which is 1 for each token."""

    request_schema = TextRequest.model_json_schema()
    request = fields_of(request_schema)
    answer_schema = Count.model_json_schema()
    answer = fields_of(answer_schema)
    list_fields = ("text",)
    example = MappingProxyType({"text": "warm bread"})

    def postprocess(self, prepared: Prepared, outputs: Outputs, top_k: int) -> list[Candidate]:
        """Returns the count."""
        ((states,),) = outputs
        return [{"tokens": int(states.sum())}]


ROW = TaskKind(
    "token-count",
    f"{__name__}:TokenCount",
    needs=("text",),
    head="ForTokenCount",
    outputs={"states": ("token", "hidden")},
    plain_graph=True,
)


def install(folder: Path) -> None:
    """Writes what pip writes for a package that has the row as an entry point."""
    written = folder / "token_count-1.dist-info"
    written.mkdir()
    (written / "METADATA").write_text("Metadata-Version: 2.1\nName: token-count\nVersion: 1\n")
    row = "token-count = tests.fake.token_count:ROW"
    (written / "entry_points.txt").write_text(f"[smallplates.tasks]\n{row}\n")
