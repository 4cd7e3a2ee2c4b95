/*
question = "Do all agents of a step hold the same state, subset, log-prob or advantage?"
needs = ""
*/
-- The higher the surprise, the less it is chance: 20 is one in 500 million.
SELECT quantity, observed::BIGINT AS observed, expected, surprise
FROM sharing
ORDER BY surprise DESC, quantity
