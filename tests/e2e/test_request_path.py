"""docs/how-it-works.md names the modules that a request really runs through."""

from docs import tables
from serving.settings import ROOT


def test_the_table_is_the_trace_of_a_request() -> None:
    document = (ROOT / "docs" / "how-it-works.md").read_text()
    assert document == tables.filled(document, {"request path": tables.request_path()})
