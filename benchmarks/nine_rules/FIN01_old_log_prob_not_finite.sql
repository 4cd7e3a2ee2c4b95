/*
code = "FIN01"
name = "old-log-prob-not-finite"
severity = "error"
scope = "row"
needs = ["digest.old_log_prob"]
summary = "old_log_prob is NaN or infinite."
why = "One of nine rules that bufcheck and its peer both run."
cause = "See nonfinite-value, which looks at every column."
remedy = "See nonfinite-value."
message = "old_log_prob is {old_log_prob}"
*/
SELECT row_id, old_log_prob
FROM digest
WHERE NOT isfinite(old_log_prob)
