/*
code = "VA005"
name = "zero-state"
severity = "warning"
scope = "row"
needs = ["digest.state_zero"]
summary = "The stored state is all zeros."
why = "Few environments show an all-zero observation; far more often the encoder's output, a dead agent or an unfilled slot was stored."
cause = "A preallocated buffer, padding for a dead agent, or an embedding that was never computed."
remedy = "Check what produced these rows. If zero is a real observation here, ignore this rule in bufcheck.toml."
message = "state_embed is all zeros"
*/
SELECT row_id
FROM digest
WHERE state_zero
