"""The small pure parts of the request's path."""

import numpy as np
import pytest

from serving.base64 import from_base64
from serving.errors import InvalidBase64Error, by_status
from serving.http.access_log import RequestContext, choose_id
from serving.scores import best, softmax


def test_softmax_is_stable() -> None:
    logits = np.array([[1000, 1000, -1000], [0, -3e38, 3e38]], np.float32)
    assert softmax(logits).tolist() == [[0.5, 0.5, 0], [0, 0, 1]]


@pytest.mark.parametrize("top_k", [1, 2, 3, 9])
def test_best_is_sorted_and_has_at_most_all_classes(top_k: int) -> None:
    scores = best(["a", "b", "c"], np.array([0, 2, 1], np.float32), top_k)
    assert [score.label for score in scores] == ["b", "c", "a"][:top_k]


def test_server_timing_is_in_milliseconds() -> None:
    context = RequestContext("id", timings={"decode": 0.0015})
    assert context.server_timing().startswith("decode;dur=1.50, total;dur=")


@pytest.mark.parametrize("offered", [None, b"", b"a b", b"a\nb", b"\xe9", b"x" * 129])
def test_request_ids_are_safe(offered: bytes | None) -> None:
    assert len(choose_id(offered)) == 32


@pytest.mark.parametrize(
    "text", ["AAAA", " AA\nAA\r\n", "data:image/png;base64,AAAA", "DATA:;BASE64,AAAA"]
)
def test_base64_forms(text: str) -> None:
    assert from_base64(text) == b"\0\0\0"


@pytest.mark.parametrize("text", ["A", "AA", "AAAA=", "A-_A", "data:image/png,AAAA", "data:AAAA"])
def test_base64_refusals(text: str) -> None:
    with pytest.raises(InvalidBase64Error):
        from_base64(text)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (418, "invalid_request")]
)
def test_errors_of_the_framework_get_our_shape(status: int, code: str) -> None:
    error = by_status(status, "text", None)
    assert (error.status, error.code) == (status, code)
