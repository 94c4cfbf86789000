"""Questions are answered as transformers' own pipeline answers them, on both backends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import pipeline

from smallplates.tasks.text import STRIDE, WINDOW
from tests.transformers import folders
from tests.transformers.answers import BACKENDS, loaded

TOLERANCE = 1e-3
"""Of a score; answers whose scores are closer may change places."""

FIVE = 5
Answers = Sequence[Mapping[str, Any]]


def windows(tokenizer: Any, question: str, context: str) -> int:
    options = {"truncation": "only_second", "max_length": WINDOW, "stride": STRIDE}
    return len(tokenizer(question, context, return_overflowing_tokens=True, **options)["input_ids"])


def long_context(tokenizer: Any, question: str) -> str:
    """A context that needs as many windows as FIVE says."""
    lengths = range(0, 100 * len(folders.WORDS), 10)
    texts = (" ".join((folders.WORDS * 100)[:length]) for length in lengths)
    return next(text for text in texts if windows(tokenizer, question, text) == FIVE)


def assert_same(actual: Answers, expected: Answers) -> bool:
    """Checks scores, and the best answer where it is clearly the best; returns whether it is."""
    scores = [answer["score"] for answer in expected]
    assert [answer["score"] for answer in actual] == pytest.approx(scores, abs=TOLERANCE)
    clear = len(scores) == 1 or scores[0] - scores[1] > TOLERANCE
    if clear:
        for name in ("answer", "start", "end"):
            assert actual[0][name] == expected[0][name]
    return clear


def cases(tokenizer: Any) -> Iterator[tuple[str, str, bool]]:
    """Question, context, and whether there may be no answer."""
    for question in folders.QUESTIONS:
        for context in [*folders.CONTEXTS, long_context(tokenizer, question)]:
            yield question, context, False
            yield question, context, True
    yield folders.QUESTIONS[0], folders.VERY_LONG, False


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", folders.NETWORKS)
def test_questions(backend: str, network: str, kept: Callable[..., Path]) -> None:
    folder = kept(folders.question_answerer, network)
    answer = pipeline("question-answering", model=str(folder), device="cpu")
    clear, ask = [], loaded(backend, folder, top_k=2)
    for question, context, no_answer in cases(answer.tokenizer):
        (ours,) = ask([{"question": question, "context": context, "allow_no_answer": no_answer}])
        theirs = answer(question=question, context=context, top_k=2, handle_impossible_answer=no_answer)
        clear.append(assert_same(ours, theirs if isinstance(theirs, list) else [theirs]))
    assert sum(clear) > len(clear) / 2, "too few cases have a best answer"
