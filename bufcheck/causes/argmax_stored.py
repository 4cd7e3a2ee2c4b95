"""The greedy action was stored with the log-prob of the sampled one, or the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from bufcheck.case import Case
from bufcheck.cause import LEAST, Hypothesis
from bufcheck.causes import _support
from bufcheck.vectors import Array

FIX = (
    "Use one action: take argmax for evaluation only, and let the sampled action be acted, scored and"
    " stored."
)
RANK = 2
APPLIES = "categorical"
WRONG = {"action": "action", "score": "log_prob"}
TOLD = {
    "argmax-action": (
        "the action is the most likely one in every row, its log-prob that of another",
        "action",
    ),
    "argmax-score": (
        "the log-prob is that of the most likely action in every row, whatever was taken",
        "score",
    ),
}


def suppose(case: Case, unexplained: Array) -> Iterator[Hypothesis]:
    for model, (evidence, kind) in TOLD.items():
        rows, margin = _support.explained_by(case, unexplained, model)
        if rows.sum() >= LEAST:
            yield Hypothesis(
                {"greedy": kind},
                _support.taking(model, unexplained),
                evidence,
                most=_support.confidence(margin),
            )
