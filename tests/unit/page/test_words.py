"""Answers and errors in words."""

import re
from pathlib import Path

import pytest

from flask_app import errors, words

LIMITS = words.Thresholds(0.5, 0.15)


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.01, "1 %"), (0.412, "41 %"), (0.9951, ">99 %"), (1.0, "100 %")],
)
def test_percents_are_whole(probability: float, text: str) -> None:
    assert words.percent(probability) == text


@pytest.mark.parametrize(
    ("top", "sentence", "sure"),
    [
        ([("Soup", 0.92), ("Rice", 0.05)], "Soup, 92 %", True),
        ([("Soup", 0.41), ("Rice", 0.37)], "Not sure: Soup 41 %, Rice 37 %", False),
        ([("Soup", 0.49), ("Rice", 0.1)], "Not sure: Soup 49 %, Rice 10 %", False),
        ([("Soup", 0.52), ("Rice", 0.40)], "Not sure: Soup 52 %, Rice 40 %", False),
        ([("Soup", 0.5), ("Rice", 0.35)], "Soup, 50 %", True),
        ([("Soup", 1.0)], "Soup, 100 %", True),
    ],
)
def test_sentence(top: list[tuple[str, float]], sentence: str, sure: bool) -> None:
    verdict = words.verdict(top, LIMITS)
    assert (verdict.sentence, verdict.sure) == (sentence, sure)


def test_every_error_has_words_of_its_own() -> None:
    assert set(errors.STATUSES) - {"internal_error"} <= set(words.ERRORS)


def test_every_code_that_is_raised_has_a_status() -> None:
    text = "".join(path.read_text() for path in Path(errors.__file__).parent.glob("*.py"))
    codes = set(re.findall(r'(?:Page|Upload|Api)Error\(\s*"(\w+)"', text))
    assert codes == set(errors.STATUSES) - {"internal_error"}


def test_unknown_codes_get_general_words() -> None:
    own = words.ErrorWords(words.CLIENT_ERROR[0], "It is a teapot.")
    assert words.error("new_code", 418, detail="it is a teapot") == own
    assert words.error("new_code", 500) == words.ErrorWords(*words.SERVER_ERROR)
