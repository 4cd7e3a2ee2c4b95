/*
code = "VA002"
name = "positive-log-prob"
severity = "error"
scope = "row"
removes = true
applies = "categorical"
needs = ["digest.old_log_prob"]
summary = "The log-prob of a discrete action is above 0."
why = "A probability above 1 does not exist: the importance ratio of this sample is wrong by a factor nobody chose."
cause = "The probability, its negative log or a sentinel was stored in place of the log-prob."
remedy = "Store Categorical(logits=...).log_prob(action) as it is."
message = "old_log_prob is {old_log_prob}; the log of a probability is at most 0"
[parameters]
least = 1e-6
*/
SELECT row_id, old_log_prob
FROM digest
WHERE old_log_prob > greatest($least, CASE WHEN $unit_roundoff > 1e-6 THEN $unit_roundoff ELSE 0 END)
    AND isfinite(old_log_prob)
