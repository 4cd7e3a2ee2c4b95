/*
code = "VA008"
name = "entropy-bound"
severity = "warning"
scope = "dump"
applies = "categorical"
needs = ["digest.old_log_prob", "digest.legal_actions"]
summary = "On average, -log-prob exceeds log K: more surprise than K actions can hold."
why = "The mean of -log-prob estimates the entropy, which is at most log K. Above it, the log-probs are of a distribution over more actions than were offered."
cause = "A softmax over all actions instead of the subset, log-probs of other rows, or actions sampled from another distribution than the one scored."
remedy = "Compute log-probs from the gathered, masked logits; replay with the actor shows which rows."
message = "mean(-old_log_prob) exceeds mean(log K) by {excess}, {errors} standard errors, over {rows} rows with a choice"
[parameters]
errors = 4
least_rows = 30
*/
-- Rows with one action say nothing and are left out. A rounding error is no excess.
WITH judged AS (
    SELECT -old_log_prob - ln(legal_actions) AS excess
    FROM digest
    WHERE legal_actions > 1 AND isfinite(old_log_prob)
),
summed AS (
    SELECT count(*) AS rows, avg(excess) AS excess, stddev_samp(excess) / sqrt(count(*)) AS se
    FROM judged
)
SELECT
    NULL::BIGINT AS row_id,
    round(excess, 4) AS excess,
    round(excess / greatest(se, 1e-12), 1) AS errors,
    rows
FROM summed
WHERE rows >= $least_rows AND excess > 1e-3 AND excess > $errors * se
