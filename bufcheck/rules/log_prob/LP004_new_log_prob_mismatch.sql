/*
code = "LP004"
name = "new-log-prob-mismatch"
severity = "error"
scope = "row"
needs = ["digest.new_log_prob", "digest.old_log_prob"]
summary = "The log-prob recomputed before the first optimiser step differs from the stored one."
why = "Before any step the ratio must be 1. If it is not, the update scores another distribution than the one that acted: KL and clip fraction are wrong from the start."
cause = "The update lacks the mask, the temperature or the eval mode that sampling had, or pairs rows in another order."
remedy = "Make sampling and update share one function that builds the distribution."
message = "old_log_prob is {old_log_prob}, new_log_prob is {new_log_prob}: ratio {ratio}"
*/
SELECT
    row_id,
    old_log_prob,
    new_log_prob,
    round(exp(least(new_log_prob - old_log_prob, 700)), 4) AS ratio
FROM digest
WHERE isfinite(old_log_prob)
    AND isfinite(new_log_prob)
    AND abs(old_log_prob - new_log_prob)
        > $new_tolerance + $new_relative_tolerance * least(abs(old_log_prob), abs(new_log_prob))
