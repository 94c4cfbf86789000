"""docs/api.md has every error code; docs/troubleshooting.md has the page's, and what refuses a start."""

import ast
import re
from collections.abc import Iterator

from werkzeug.exceptions import MethodNotAllowed, NotFound

from flask_app.app import from_http
from flask_app.errors import STATUSES
from smallplates import errors
from smallplates.settings import ROOT

API = (ROOT / "docs" / "api.md").read_text()
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
START, _, PAGE_CODES = re.split("^## .*$", PAGE, flags=re.MULTILINE)[1:]
GROUPS = (errors.ServingError, errors.RequestError, errors.RetryableError)
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ServingError) and kind not in GROUPS
]
CODE = r"^\| `(\w+)` \| (\d+) \|"
PROGRAMS = ("smallplates", "fastapi_onnx", "fastapi_pt")
NO_START = [f"smallplates/{name}" for name in ("cli/export.py", "client", "export", "ray")]
"""What refuses something else than a start."""


def codes(section: str) -> list[tuple[str, str]]:
    return re.findall(CODE, section, re.MULTILINE)


def test_every_code_of_the_api_is_explained() -> None:
    defined = {(kind.code, str(kind.status)) for kind in KINDS}
    assert sorted(codes(API)) == sorted(defined)


def test_every_header_of_an_error_is_explained() -> None:
    names = {name for kind in KINDS for name in kind("").headers}
    assert names <= set(re.findall(r"^\| `([\w-]+)` \|", API, re.MULTILINE))


def test_every_code_of_the_page_is_explained() -> None:
    raised = [from_http(NotFound()), from_http(MethodNotAllowed())]
    kinds = {(code, str(status)) for code, status in STATUSES.items()}
    kinds |= {(error.code, str(error.status)) for error in raised}
    assert sorted(codes(PAGE_CODES)) == sorted(kinds)


def template(node: ast.expr) -> str:
    """The text that an expression makes, with `...` for what is not known before; "" for no text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [str(v.value) if isinstance(v, ast.Constant) else "..." for v in node.values]
        return " ".join("".join(parts).split())
    return ""


def refusals() -> Iterator[tuple[str, str]]:
    """Where a start is refused, and the text of its ConfigurationError."""
    others = tuple(str(ROOT / name) for name in NO_START)
    for path in sorted(file for program in PROGRAMS for file in (ROOT / program).rglob("*.py")):
        if str(path).startswith(others):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func).rpartition(".")[2]
            text = template(node.args[0]) + ": ..." * (name == "library_errors")
            if name in ("ConfigurationError", "library_errors") and re.search(r"\w", text):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def messages() -> list[str]:
    """The messages in the first column."""
    cells = re.findall(r"^\| (`[^|]*) \|", START, re.MULTILINE)
    return [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]


def matches(message: str, text: str) -> bool:
    """Whether a message of the page, with `...` for any words, is a text of the code."""
    return re.fullmatch(".*".join(map(re.escape, message.split("..."))), text) is not None


def test_every_refusal_is_explained() -> None:
    known = messages()
    unexplained = [
        f"{place} {text}" for place, text in refusals() if not any(matches(m, text) for m in known)
    ]
    assert unexplained == []


def test_every_message_is_one_of_the_code() -> None:
    texts = [text for _, text in refusals()]
    unknown = [m for m in messages() if not any(matches(m, text) for text in texts)]
    assert [m for m in unknown if m not in ("SERVING_...", "--...", "UI_...")] == []
