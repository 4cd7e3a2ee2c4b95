/*
code = "SC004"
name = "null-value"
severity = "error"
scope = "row"
removes = true
needs = ["digest.nulls"]
summary = "A field that every sample must have is null."
why = "Loaders turn nulls into zeros or NaN; a zero log-prob says the action was certain, a NaN poisons the whole mini-batch."
cause = "An outer join, a worker that died in mid-step, or a field that only some code paths fill."
remedy = "Fill the field where the sample is made, or do not store the sample."
message = "null in {nulls}"
*/
SELECT row_id, nulls
FROM digest
WHERE nulls IS NOT NULL
