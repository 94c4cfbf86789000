"""A Python task that does what its requests command."""

import ctypes
import os
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from smallplates import PythonTask
from tests.fake.backend import wait_for_gate, write_down


def lasting_child(runs_program: bool) -> int:
    """Starts a process that inherits all descriptors that it may have; returns its id."""
    if runs_program:
        return subprocess.Popen(["sleep", "1000"], close_fds=False).pid
    child = os.fork()
    if not child:
        time.sleep(1000)
    return child


class Obedient(PythonTask):
    """Answers with the number that it gets; FAKE_GATE and FAKE_SIZES are those of the fake backend."""

    class Request(BaseModel):
        """A command."""

        number: int
        does: Literal[
            "",
            "refuse",
            "refuse late",
            "refuse alone",
            "fail",
            "fail early",
            "crash",
            "hang",
            "fork",
            "run",
        ] = ""
        held: bool = False
        padding: str = ""
        length: int = 0

    class Answer(BaseModel):
        """The number, behind so many letters."""

        number: int
        text: str

    example: ClassVar[Request | None] = Request(number=1)

    def load(self, folder: Path, device: str) -> None:
        self.place = f"{folder.name} {device}"

    def preprocess(self, request: Request) -> Request:
        if request.does == "refuse":
            raise ValueError(f"{request.number} is refused")
        if request.does == "fail early":
            raise KeyError("secret details")
        return request

    def infer(self, items: list[Request]) -> list[Request]:
        """Obeys the first command of the batch that is none of `preprocess` and `postprocess`."""
        write_down(len(items))
        for item in items:
            if item.held:
                wait_for_gate(Path(os.environ["FAKE_GATE"]))
            if item.does == "crash":
                ctypes.string_at(0)
            if item.does == "hang":
                time.sleep(1000)
            if item.does in ("fork", "run"):
                child = lasting_child(runs_program=item.does == "run")
                Path(f"{os.environ['FAKE_GATE']}.child").write_text(str(child))
            if item.does == "fail":
                raise RuntimeError("secret details")
            if item.does == "refuse alone":
                raise ValueError(f"{item.number} is refused, alone")
        return items

    def postprocess(self, output: Request) -> dict[str, Any]:
        if output.does == "refuse late":
            raise ValueError(f"{output.number} is refused late")
        return {"number": output.number, "text": self.place + "x" * output.length}


class Large(Obedient):
    """Has no example, and larger batches than any that the service would choose."""

    example = None
    max_batch_size = 100


class Numbers(PythonTask):
    """Answers with what it gets, and with `kind` of float that JSON has no form for."""

    class Request(BaseModel):
        """Numbers of each type, also beyond 64 bits and in lists."""

        exact: float = 0.0
        point: list[float] = []
        count: int = 0
        counts: list[int] = []
        not_finite: Literal["", "nan", "inf"] = ""

    class Answer(BaseModel):
        """The same."""

        exact: float
        point: list[float]
        count: int
        counts: list[int]

    example: ClassVar[dict[str, Any] | None] = {"exact": 0.5, "point": [1, 2], "count": 3, "counts": [4]}

    def load(self, folder: Path, device: str) -> None:
        """Loads nothing."""

    def infer(self, items: list[Request]) -> list[dict[str, Any]]:
        return [
            item.model_dump() | ({"exact": float(item.not_finite)} if item.not_finite else {})
            for item in items
        ]


class Squares(PythonTask):
    """Answers with the square of a whole number, which may have more than 64 bits."""

    class Request(BaseModel):
        """A number."""

        number: int

    class Answer(BaseModel):
        """Its square, also as a list."""

        square: int
        all: list[int]

    def load(self, folder: Path, device: str) -> None:
        """Loads nothing."""

    def infer(self, items: list[Request]) -> list[dict[str, Any]]:
        return [{"square": item.number**2, "all": [item.number**2]} for item in items]
