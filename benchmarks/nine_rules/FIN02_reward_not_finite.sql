/*
code = "FIN02"
name = "reward-not-finite"
severity = "error"
scope = "row"
needs = ["digest.reward"]
summary = "reward is NaN or infinite."
why = "One of nine rules that bufcheck and its peer both run."
cause = "See nonfinite-value, which looks at every column."
remedy = "See nonfinite-value."
message = "reward is {reward}"
*/
SELECT row_id, reward
FROM digest
WHERE NOT isfinite(reward)
