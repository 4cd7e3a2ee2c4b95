/*
question = "How undecided is the policy, for each number of actions?"
needs = ""
*/
-- Minus the log-prob is on average the entropy, if actions were sampled from what was stored.
SELECT
    num_actions,
    count(*) AS rows,
    avg(ln(CASE WHEN legal_actions > 0 THEN legal_actions END)) AS uniform_entropy_mean,
    avg(entropy) FILTER (WHERE isfinite(entropy)) AS entropy_mean,
    min(entropy) AS entropy_min,
    max(entropy) AS entropy_max,
    avg(-old_log_prob) FILTER (WHERE isfinite(old_log_prob)) AS minus_log_prob_mean
FROM digest
GROUP BY num_actions
ORDER BY num_actions
