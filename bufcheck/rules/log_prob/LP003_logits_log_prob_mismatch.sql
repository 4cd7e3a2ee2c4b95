/*
code = "LP003"
name = "logits-log-prob-mismatch"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.logits_log_prob", "digest.old_log_prob"]
summary = "old_log_prob is not the log-softmax of the row's own logits at action_index."
why = "Both were stored by the trainer at sampling. If they disagree, one of them belongs to another action, row or distribution."
cause = "The mask or temperature was applied on one side only, or the column is shifted or shuffled against the other."
remedy = "Compute both from one distribution object in one place. Declare policy.temperature and policy.masked_logit if they differ from the defaults."
message = "old_log_prob is {old_log_prob}, the stored logits give {logits_log_prob}"
*/
-- Rows whose logits cannot be indexed are flagged by subset-length-mismatch and its like.
SELECT row_id, old_log_prob, logits_log_prob
FROM digest
WHERE isfinite(old_log_prob)
    AND NOT isnan(logits_log_prob)
    AND abs(old_log_prob - logits_log_prob)
        > $tolerance + $relative_tolerance * least(abs(old_log_prob), abs(logits_log_prob))
