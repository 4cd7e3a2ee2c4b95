/*
code = "FIN04"
name = "advantage-not-finite"
severity = "error"
scope = "row"
needs = ["digest.advantage"]
summary = "advantage is NaN or infinite."
why = "One of nine rules that bufcheck and its peer both run."
cause = "See nonfinite-value, which looks at every column."
remedy = "See nonfinite-value."
message = "advantage is {advantage}"
*/
SELECT row_id, advantage
FROM digest
WHERE NOT isfinite(advantage)
