"""docs/how-it-works.md names the modules that a request really runs through."""

from smallplates.settings import ROOT
from tools import tables


def test_the_table_is_the_trace_of_a_request() -> None:
    document = (ROOT / "docs" / "how-it-works.md").read_text()
    assert document == tables.filled(document, {"request path": tables.request_path()})
