"""old_log_prob becomes the replayed one, where the actor is certain and only the log-prob can be wrong.

The actor of an (agent, version) is certain where it gives most of its rows what they hold, or what a
proven bug made of that. Only the log-prob is wrong where a proven cause says so. Where a cause leaves
open whether the action was sampled otherwise or only scored otherwise, the sign of the mean error
tells: stored values are too low on average where they do not belong to what was sampled. Rows without a
cause must hold, together, such actions as the actor would have taken in their states, and be enough to
tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bufcheck.repair import ABOUT_LOG_PROB

if TYPE_CHECKING:
    from bufcheck.repair import Work

RESOLVES = ABOUT_LOG_PROB
FEWEST, MOSTLY = 20, 0.5
"""Rows that confirm an actor, and which share of its own that must be."""
STRAY = 3.5
"""Standard errors that the log-probs of a group may lie off what its actors expect."""
POWER = 8.0
"""Standard errors they would lie off, had the actions nothing to do with the states."""
SIGN = 4.0
"""Standard errors that a mean error must lie below 0."""
ELSEWHERE = (
    "placeholder-logprob",
    "n-by-1-broadcast",
    "stale-policy-version",
    "recomputed-after-update",
    "agent-actor-swap",
)
"""Causes that fit whatever the row's own actor says."""
SQL = f"""
    WITH judged AS (
        SELECT
            row_id, actor, log_prob, entropy, variance, choices, residual,
            abs(residual) <= allowed AS right,
            coalesce(number, -1) AS number, cause, confidence, wrong
        FROM replay LEFT JOIN causes USING (row_id)
        WHERE isfinite(log_prob) AND choices IS DISTINCT FROM 1
    ),
    certain AS (
        SELECT actor
        FROM judged
        GROUP BY actor
        HAVING count(*) FILTER (
            right OR (confidence = 'proven' AND cause NOT IN {ELSEWHERE} AND wrong <> 'row')
        ) >= greatest({FEWEST}, {MOSTLY} * count(*))
    ),
    wrong_rows AS (SELECT * FROM judged WHERE right IS NOT TRUE),
    groups AS (
        SELECT
            number,
            any_value(wrong) AS wrong,
            any_value(confidence) AS confidence,
            avg(residual) / nullif(stddev_samp(residual) / sqrt(count(*)), 0) AS shift,
            sum(log_prob::DOUBLE + entropy) / nullif(sqrt(sum(variance::DOUBLE)), 0) AS stray,
            sum(ln(choices) - entropy) / nullif(sqrt(sum(variance::DOUBLE)), 0) AS power
        FROM wrong_rows
        WHERE isfinite(residual)
        GROUP BY number
    ),
    placeholders AS (SELECT row_id FROM findings WHERE rule = 'single-action-log-prob')
    SELECT row_id, log_prob::DOUBLE AS old_log_prob
    FROM wrong_rows SEMI JOIN certain USING (actor) LEFT JOIN groups USING (number)
    WHERE CASE
        WHEN wrong_rows.wrong = 'log_prob' AND wrong_rows.confidence = 'proven' THEN true
        WHEN wrong_rows.wrong = 'either' AND wrong_rows.confidence = 'proven' THEN shift <= -{SIGN}
        WHEN number = -1 THEN abs(stray) <= {STRAY} AND power >= {POWER}
        ELSE false
    END
    UNION ALL
    SELECT row_id, log_prob::DOUBLE AS old_log_prob
    FROM replay SEMI JOIN placeholders USING (row_id) SEMI JOIN certain USING (actor)
    WHERE isfinite(log_prob)
"""


def mend(work: Work) -> str | None:
    return SQL if work.replay is not None else None
