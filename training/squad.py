"""Questions about paragraphs in SQuAD's JSON, and how well they are answered."""

import gzip
import json
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = "squad-dev"
"""Where they are in the folder of the data."""

Place = tuple[int, int]
"""First character of an answer in the paragraph, and the one after its last."""

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Question:
    """A question about a paragraph, and what several people answered."""

    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]
    """First place of each answer, which is not always the one that was meant."""

    def places(self) -> list[list[Place]]:
        """Returns all places of each answer in the paragraph, as whole words."""
        return [
            sorted(
                {(start, start + len(answer))}
                | {
                    match.span()
                    for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", self.context)
                }
            )
            for answer, start in zip(self.answers, self.starts, strict=True)
        ]


def read(path: Path) -> list[Question]:
    """Reads the questions of all articles of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return [
        Question(
            asked["question"].strip(),
            paragraph["context"],
            tuple(answer["text"] for answer in asked["answers"]),
            tuple(answer["answer_start"] for answer in asked["answers"]),
        )
        for article in articles
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def words(text: str) -> list[str]:
    """Returns the words of an answer that count: without case, punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def f1(said: str, answer: str) -> float:
    """Computes how well the words of two answers agree, from 0 to 1."""
    one, other = words(said), words(answer)
    common = sum((Counter(one) & Counter(other)).values())
    return 2 * common / (len(one) + len(other)) if common else float(one == other)


def scores(said: Sequence[str], questions: Sequence[Question]) -> dict[str, float]:
    """Computes the shares of words (f1) and of whole answers (exact) that are right.

    The best of a question's answers counts.
    """
    pairs = list(zip(said, questions, strict=True))
    right = sum(is_right(answer, question) for answer, question in pairs)
    agreement = sum(max(f1(answer, each) for each in question.answers) for answer, question in pairs)
    return {"f1": agreement / len(pairs), "exact": right / len(pairs)}


def is_right(said: str, question: Question) -> bool:
    """Returns whether one of the people said the same."""
    return any(words(said) == words(answer) for answer in question.answers)
