"""`smallplates.tasks.question_answering`: from exports to the parts of a context that answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from smallplates.errors import TextTooLongError
from smallplates.models.tensors import Signature
from smallplates.tasks.base import Candidate
from smallplates.tasks.question_answering import (
    INLINE_CHARACTERS,
    MAX_ANSWER,
    best_spans,
    softmax,
    word_places,
)
from smallplates.tasks.text import MAX_WINDOWS, TENSOR, TOKENS
from tests import exports, graphs
from tests.served_task import ServedTask, loaded

QUESTION = "what was cold"
WORD_PIECE, BYTE_LEVEL = exports.word_piece(), exports.byte_level()
of_both = pytest.mark.parametrize("tokenizer", [WORD_PIECE, BYTE_LEVEL], ids=["word piece", "bytes"])


def saved(folder: Path, tokenizer: Tokenizer = WORD_PIECE, **changes: Any) -> Path:
    return exports.asked(folder / "made", tokenizer, changes)


def planned(folder: Path) -> tuple[Signature, ...]:
    return ServedTask(folder).signatures


def answers(folder: Path, context: str, top_k: int = 1, **fields: Any) -> list[Candidate]:
    request = {"question": QUESTION, "context": context, **fields}
    return ServedTask(folder).answers([request], top_k)[0]


def best(folder: Path, context: str, **fields: Any) -> tuple[str, int, int]:
    (answer,) = answers(folder, context, **fields)
    return answer["answer"], answer["start"], answer["end"]


# answers and their places


@pytest.mark.parametrize(
    "before",
    [
        "",
        "The bread was dull. ",
        "Ça été naïf, ",
        "東京都 ",
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ",
        "e\u0301\u0323te\u0301 ",
        "\u00a0\u3000 \t ",
        "and " * 200,
    ],
)
@of_both
def test_places_are_in_the_callers_own_text(tmp_path: Path, tokenizer: Tokenizer, before: str) -> None:
    context = f"{before}the warm soup on the table\u0301 \U0001f600"
    start = len(before) + 4
    place = best(saved(tmp_path, tokenizer), context)
    assert place == ("warm soup", start, start + 9)
    assert context[start : start + 9] == "warm soup"


def test_answers_are_whole_words_with_any_space_between_them(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    assert best(folder, "\tthe\twarm\n\nsoup\t") == ("warm\n\nsoup", 5, 15)
    # "wonderfull" is two tokens, of which only the first one is of the answer
    assert len(WORD_PIECE.encode("wonderfull", add_special_tokens=False).ids) == 2
    assert best(folder, "a Wönderfull soup")[0] == "Wönderfull soup"


def test_answers_have_up_to_fifteen_tokens(tmp_path: Path) -> None:
    fits = f"warm{' bread' * (MAX_ANSWER - 2)} soup"
    assert best(saved(tmp_path), f"the {fits} was cold")[0] == fits
    best_answers = answers(saved(tmp_path), f"the {fits.replace('soup', 'bread soup')} was cold", 20)
    assert max(len(answer["answer"].split()) for answer in best_answers) == MAX_ANSWER


def test_the_score_is_the_product_of_both_probabilities(tmp_path: Path) -> None:
    (answer,) = answers(saved(tmp_path), "warm soup")
    # [CLS] and both words count, the question and [SEP] do not
    expected = (np.exp(9) / np.exp([9, 2, 4]).sum()) ** 2
    assert answer["score"] == pytest.approx(expected, abs=1e-6)


def test_a_tokeniser_without_special_tokens_has_none_for_no_answer(tmp_path: Path) -> None:
    tokenizer = exports.word_piece()
    tokenizer.post_processor = None
    (answer,) = answers(saved(tmp_path, tokenizer), "warm soup", question="soup")
    assert answer["score"] == pytest.approx((np.exp(9) / np.exp([9, 2]).sum()) ** 2, abs=1e-6)


def test_a_token_that_only_begins_texts_does_not_mean_no_answer(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    for tokens, others in (({"bos_token": "[CLS]"}, 0), ({"bos_token": "x", "cls_token": "[CLS]"}, 1)):
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
        answer, none = answers(folder, "soup", 2, allow_no_answer=True)
        expected = 1 / ((1 + others * np.exp(4 - 2)) * (1 + others * np.exp(4 - 9)))
        assert answer["score"] == pytest.approx(expected, abs=1e-6)
        assert (none["score"] > 0) == bool(others)


def test_equal_texts_are_one_answer(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    best_answers = answers(folder, "bread Wonderful and wonderful", 2)
    assert best_answers[0]["answer"] == "Wonderful"
    assert (best_answers[0]["start"], best_answers[0]["end"]) == (6, 15)
    probability = (np.exp(6) / (2 * np.exp(6) + np.exp(4) + 2)) ** 2
    assert best_answers[0]["score"] == pytest.approx(2 * probability, abs=1e-6)
    assert best_answers[1]["answer"] == "Wonderful and wonderful"


def test_an_answer_of_two_windows_counts_twice(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    before = "bread " * 30  # the second window begins at the 26th word
    (answer,) = answers(folder, f"{before}wonderful{' bread' * 60}")
    assert (answer["answer"], answer["start"]) == ("wonderful", 180)
    assert 1 < answer["score"] < 2


def test_no_answer(tmp_path: Path) -> None:
    folder, context = saved(tmp_path), "dull bread on the table"
    assert best(folder, context)[0]
    assert best(folder, context, allow_no_answer=False)[0]
    (answer,) = answers(folder, context, allow_no_answer=True)
    expected = (np.exp(4) / (np.exp(4) + 5)) ** 2
    assert answer == {"answer": "", "start": 0, "end": 0, "score": pytest.approx(expected, abs=1e-6)}
    assert best(folder, "the warm soup", allow_no_answer=True)[0] == "warm soup"
    top = answers(folder, "the warm soup", 20, allow_no_answer=True)
    assert "" in [answer["answer"] for answer in top]


def test_no_answer_is_as_probable_as_in_the_least_of_the_windows(tmp_path: Path) -> None:
    task, context = loaded(saved(tmp_path)), " ".join(map(str, range(100)))
    asked = {"question": QUESTION, "context": context, "allow_no_answer": True}
    prepared = task.preprocess(asked)
    logits = [np.zeros(len(item[0]), np.float32) for item in prepared.items]
    logits[0][0], logits[1][0], logits[2][0] = 9, 3, 9
    (answer,) = task.postprocess(prepared, [[numbers, numbers] for numbers in logits], 1)
    first, behind = prepared.context.windows[1]
    expected = (np.exp(3) / (np.exp(3) + behind - first)) ** 2
    assert answer == {"answer": "", "start": 0, "end": 0, "score": pytest.approx(expected, abs=1e-6)}


# windows


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("words", [1, 57, 58, 59, 60, 83, 84, 85, 500])
@of_both
def test_windows_are_the_tokenisers(tmp_path: Path, tokenizer: Tokenizer, words: int, side: str) -> None:
    folder = saved(tmp_path, tokenizer)
    options = {"truncation_side": side, "add_prefix_space": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    context = " ".join(["the", "wonderful", "bread"][number % 3] for number in range(words))
    prepared = loaded(folder).preprocess({"question": QUESTION, "context": context})
    tokeniser = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokeniser.no_padding()
    tokeniser.enable_truncation(64, stride=32, strategy="only_second", direction=side)
    encoding = tokeniser.encode(QUESTION, context)
    expected = [encoding.ids, *(window.ids for window in encoding.overflowing)]
    assert [item[0].tolist() for item in prepared.items] == expected
    assert all(item[1].tolist() == [1] * len(item[0]) for item in prepared.items)


def test_words_end_where_their_window_does(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path, BYTE_LEVEL))
    context = "and " * 30 + "q" * 60  # a token a letter
    prepared = task.preprocess({"question": QUESTION, "context": context})
    (_, end), _, (start, _) = prepared.context.windows
    before = len(prepared.context.unmasked)
    logits = [np.zeros(len(item[0]), np.float32) for item in prepared.items]
    logits[0][before + end - 1] = logits[2][before] = 50
    best_answers = task.postprocess(prepared, [[numbers, numbers] for numbers in logits], 2)
    # the word's first token is the 30th, a blank, and the letters follow
    assert 30 < start < end < 91
    assert {(answer["start"], answer["end"]) for answer in best_answers} == {
        (120, 89 + end),
        (89 + start, 180),
    }


@pytest.mark.parametrize(
    ("most", "window", "stride"), [(512, 384, 128), (200, 200, 100), (384, 384, 128), (300, 300, 128)]
)
def test_windows_are_as_long_as_the_model_takes(
    tmp_path: Path, most: int, window: int, stride: int
) -> None:
    folder = saved(tmp_path, max_position_embeddings=most)
    assert planned(folder)[TOKENS].limits == {"tokens": window}
    assert planned(folder)[TENSOR].limits == {"sequence_length": most}
    context = " ".join(f"{number % 10}" for number in range(1000))
    windows = loaded(folder).preprocess({"question": QUESTION, "context": context}).context.windows
    assert windows[0] == (0, window - 6)
    assert windows[1][0] == window - 6 - stride
    assert windows[-1][1] == 1000


def test_a_context_has_so_many_windows_at_most(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path))
    most = MAX_WINDOWS
    fits = "bread " * (58 + 26 * (most - 1))  # words of a window, and those that each more of them has
    prepared = task.preprocess({"question": QUESTION, "context": fits})
    assert len(prepared.items) == most
    with pytest.raises(
        TextTooLongError, match=f"makes {most + 1} windows of 64 tokens; at most {most} "
    ):
        task.preprocess({"question": QUESTION, "context": fits + "bread"})


def test_windows_are_estimated_from_bytes(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path))
    assert [task.likely_items(size) for size in (1, 4 * 64, 4 * 64 + 1, 10**9)] == [1, 1, 2, MAX_WINDOWS]
    for windows in (2, 8, 32):
        context = "tea " * (58 + 26 * (windows - 1))
        assert 0.7 * windows < task.likely_items(len(context)) < 1.3 * windows


def test_a_question_leaves_room_for_the_context(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path))
    fits, long = "bread " * 28, "bread " * 29
    assert len(task.preprocess({"question": fits, "context": "soup " * 60}).items) > 1
    with pytest.raises(TextTooLongError, match="the question has 29 tokens; at most 28 are accepted"):
        task.preprocess({"question": long, "context": "soup " * 60})
    assert len(task.preprocess({"question": "bread " * 60, "context": "soup"}).items) == 1
    with pytest.raises(TextTooLongError, match="the question has 70 tokens"):
        task.preprocess({"question": "bread " * 70, "context": "soup"})


# parts


@pytest.mark.parametrize("tokens", [1, 2, 14, 15, 40])
@pytest.mark.parametrize("count", [1, 12, 50, 1000])
def test_the_best_spans_are_those_of_all(tokens: int, count: int) -> None:
    generator = np.random.default_rng(tokens)
    start, end = generator.random((2, tokens), np.float32)
    spans = [(i, j) for i in range(tokens) for j in range(i, min(tokens, i + MAX_ANSWER))]
    spans.sort(key=lambda span: -start[span[0]] * end[span[1]])
    starts, ends, scores = best_spans(start, end, count)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == spans[:count]
    assert scores.tolist() == [start[i] * end[j] for i, j in spans[:count]]


def test_a_span_is_found_where_nothing_is_probable() -> None:
    nothing = np.zeros(3, np.float32)
    starts, ends, scores = best_spans(nothing, nothing, 1)
    assert (len(starts), len(ends), scores.tolist()) == (1, 1, [0])


def test_what_does_not_count_is_not_probable() -> None:
    probabilities = softmax(np.array([50, 1, 2], np.float16), np.array([False, True, True]))
    assert probabilities == pytest.approx([0, 1 / (1 + np.e), np.e / (1 + np.e)], abs=1e-6)


def test_words_of_several_tokens() -> None:
    nan = float("nan")
    places = word_places(np.array([0, 0, 1, nan, nan, 4, 4, 4]))
    assert places.tolist() == [[0, 1], [0, 1], [2, 2], [3, 3], [4, 4], [5, 7], [5, 7], [5, 7]]


def test_the_answers_of_long_words_are_made_on_a_thread(tmp_path: Path) -> None:
    task = loaded(saved(tmp_path))
    for length, cheap in ((INLINE_CHARACTERS, True), (INLINE_CHARACTERS + 1, False)):
        prepared = task.preprocess({"question": QUESTION, "context": "x" * length})
        assert (len(prepared.items), prepared.runs_inline) == (1, cheap)


# what is served


def test_outputs_may_be_others_and_in_another_order(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    network = graphs.question_answering(
        np.zeros((WORD_PIECE.get_vocab_size(), 2), np.float32), outputs=("end_logits", "start_logits")
    )
    graphs.saved(network, folder)
    assert [spec.name for spec in planned(folder)[TOKENS].outputs] == ["start_logits", "end_logits"]
    assert [spec.name for spec in planned(folder)[TENSOR].outputs] == ["end_logits", "start_logits"]
