/*
code = "VA003"
name = "single-action-log-prob"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.old_log_prob", "digest.legal_actions"]
summary = "Only one action was possible, yet its log-prob is not 0."
why = "With one choice the probability is 1. Anything else was computed over actions the sample was not offered."
cause = "The mask or the subset was not applied when the log-prob was computed, or the log-prob belongs to another row."
remedy = "Compute the log-prob from the same masked, gathered logits the action was sampled from."
message = "one legal action, but old_log_prob is {old_log_prob}"
[parameters]
least = 1e-6
*/
-- With a finite masked_logit, masked actions keep a little probability; only a very low one has none.
SELECT row_id, old_log_prob
FROM digest
WHERE legal_actions = 1
    AND (num_actions = 1 OR coalesce($policy_masked_logit, -1e9) <= -1e4)
    AND isfinite(old_log_prob)
    AND abs(old_log_prob)
        > greatest($least, CASE WHEN $unit_roundoff > 1e-6 THEN 2 * $unit_roundoff ELSE 0 END)
