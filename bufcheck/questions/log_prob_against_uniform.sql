/*
question = "How do the stored log-probs compare with a uniform choice, for each number of actions?"
needs = ""
*/
-- A policy that prefers anything lies above uniform on average. Masked actions make fewer choices of K.
WITH chosen AS (
    SELECT
        num_actions,
        old_log_prob::DOUBLE AS log_prob,
        0 - ln(CASE WHEN num_actions > 0 THEN num_actions END) AS uniform,
        0 - ln(CASE WHEN legal_actions > 0 THEN legal_actions END) AS uniform_legal,
        legal_actions > 1 AND abs(old_log_prob - uniform_legal) <= 1e-6 AS at_uniform
    FROM digest
    WHERE isfinite(old_log_prob)
)
SELECT
    num_actions,
    count(*) AS rows,
    any_value(uniform) AS uniform_log_prob,
    avg(uniform_legal) AS uniform_legal_mean,
    avg(log_prob) AS log_prob_mean,
    min(log_prob) AS log_prob_min,
    max(log_prob) AS log_prob_max,
    avg(log_prob - uniform_legal) AS above_uniform_mean,
    count(*) FILTER (WHERE at_uniform) AS at_uniform
FROM chosen
GROUP BY num_actions
ORDER BY num_actions
