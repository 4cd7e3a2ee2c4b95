/*
code = "LP001"
name = "log-prob-mismatch"
severity = "error"
scope = "row"
removes = true
needs = ["replay.log_prob", "digest.old_log_prob"]
unless = "SELECT CASE WHEN count(*) > 0 THEN format('found nothing, but {:,} rows were not replayed', count(*)) END FROM replay WHERE log_prob IS NULL"
summary = "The actor that acted gives this action another log-prob than the one stored."
why = "The ratio of PPO divides by the stored value. If it is not what the sampling policy gave, the update is pushed by a number that no policy ever had: KL explodes, or clipping freezes training."
cause = "The distribution that scored the action is not the one that sampled it: another mask, subset order, agent, policy version, or row."
remedy = "Compute the log-prob where the action is sampled, from the same distribution object, and store both together. Check first that the checkpoint is the one that acted."
message = "old_log_prob is {old_log_prob}, the actor gives {replayed}"
*/
-- NaN counts as greater than every number, so what the actor could not score is found too.
SELECT row_id, old_log_prob, log_prob AS replayed, residual
FROM replay
WHERE abs(residual) > allowed
