"""old_log_prob becomes the replayed one, where the actor is certain and only the log-prob can be wrong.

The actor of an (agent, version) is certain where it gives most of its rows what they hold, or what a
proven bug made of that. Only the log-prob is wrong where a proven cause says so, or where the logits
that were stored at sampling give what the actor gives. Where a cause leaves open whether the action was
sampled otherwise or only scored otherwise, the odds tell: what is stored is the log-prob of the one,
what is replayed that of the other. Rows without a cause must hold, together, such actions as the actor
would have taken in their states, and be enough to tell.
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
ODDS = 9.2
"""Nats by which it must be likelier that the actor itself sampled the actions: one in 10,000."""
EXACT = 4e-6
"""How exact a log-prob is that was not touched, per nat."""
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
            row_id, actor, log_prob, entropy, variance, choices, residual, rounding,
            abs(residual) <= allowed AS fits,
            abs(logits_log_prob - log_prob) <= allowed AS logits_fit,
            coalesce(number, -1) AS number, cause, confidence, wrong
        FROM replay
        JOIN (SELECT row_id, logits_log_prob FROM digest) USING (row_id)
        LEFT JOIN causes USING (row_id)
        WHERE isfinite(log_prob)
    ),
    certain AS (
        SELECT actor
        FROM judged
        WHERE choices IS DISTINCT FROM 1
        GROUP BY actor
        HAVING count(*) FILTER (
            fits OR logits_fit
            OR (confidence = 'proven' AND cause NOT IN {ELSEWHERE} AND wrong <> 'row')
        ) >= greatest({FEWEST}, {MOSTLY} * count(*))
    ),
    -- A single choice has log-prob 0 under any policy, and tells nothing of who sampled it.
    groups AS (
        SELECT
            number,
            -sum(residual) AS odds,
            sum(log_prob::DOUBLE + entropy) / nullif(sqrt(sum(variance::DOUBLE)), 0) AS stray,
            sum(ln(choices) - entropy) / nullif(sqrt(sum(variance::DOUBLE)), 0) AS power
        FROM judged
        WHERE fits IS NOT TRUE AND isfinite(residual) AND choices IS DISTINCT FROM 1
        GROUP BY number
    ),
    mendable AS (
        SELECT
            row_id,
            actor,
            log_prob::DOUBLE AS old_log_prob,
            fits IS NOT TRUE AND CASE
                WHEN logits_fit THEN true
                WHEN wrong = 'log_prob' AND confidence = 'proven' THEN true
                WHEN wrong = 'either' AND confidence = 'proven' THEN odds >= {ODDS}
                WHEN number = -1 THEN abs(stray) <= {STRAY} AND power >= {POWER}
                ELSE false
            END AS proven,
            fits AND abs(residual) > {EXACT} * (1 + abs(log_prob)) + rounding AS near
        FROM judged SEMI JOIN certain USING (actor) LEFT JOIN groups USING (number)
    ),
    -- Where most rows of an actor are wrong, those that came near the right value did by accident.
    mostly AS (SELECT actor FROM mendable GROUP BY actor HAVING avg(proven::INTEGER) > {MOSTLY})
    SELECT row_id, old_log_prob
    FROM mendable
    WHERE proven OR (near AND actor IN (SELECT actor FROM mostly))
"""


def mend(work: Work) -> str | None:
    return SQL if work.replay is not None else None
