"""Log-probs go back to the rows they were shifted or shuffled away from, where that is proven. What
fell off an edge, or could have come from several rows, is recomputed: the move proves its actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bufcheck.repair import ABOUT_LOG_PROB

if TYPE_CHECKING:
    from bufcheck.repair import Work

RESOLVES = ABOUT_LOG_PROB
MOVES = (
    "logprob-row-shift",
    "minibatch-permutation",
    "agent-axis-reshape",
    "agent-rows-crossed",
    "valid-filter-desync",
)
SQL = f"""
    WITH moved AS (
        SELECT row_id, source_row_id
        FROM causes
        WHERE cause IN {MOVES} AND wrong = 'log_prob' AND confidence = 'proven'
    ),
    returned AS (
        SELECT source_row_id AS row_id, min_by(old_log_prob, moved.row_id) AS stored
        FROM moved JOIN replay ON replay.row_id = moved.row_id
        WHERE source_row_id IS NOT NULL
        GROUP BY source_row_id
    ),
    placed AS (
        SELECT row_id, residual, log_prob, rounding, abs(stored - log_prob) <= allowed AS back, stored
        FROM replay LEFT JOIN returned USING (row_id)
        WHERE isfinite(log_prob)
    ),
    -- A row that got nearly its own value was not noticed: it is off by more than values that are back.
    exact AS (
        SELECT 8 * quantile_cont(abs(stored - log_prob), 0.999) + 1e-6 AS off FROM placed WHERE back
    )
    SELECT row_id, CASE WHEN back THEN stored ELSE log_prob END AS old_log_prob
    FROM placed
    WHERE row_id IN (SELECT row_id FROM moved)
        OR abs(residual) > (SELECT off FROM exact) + rounding
        AND row_id NOT IN (SELECT row_id FROM findings WHERE severity = 'error')
"""


def mend(work: Work) -> str | None:
    return SQL if work.replay is not None else None
