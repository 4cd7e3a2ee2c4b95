/*
code = "FIN03"
name = "value-not-finite"
severity = "error"
scope = "row"
needs = ["digest.value"]
summary = "value is NaN or infinite."
why = "One of nine rules that bufcheck and its peer both run."
cause = "See nonfinite-value, which looks at every column."
remedy = "See nonfinite-value."
message = "value is {value}"
*/
SELECT row_id, value
FROM digest
WHERE NOT isfinite(value)
