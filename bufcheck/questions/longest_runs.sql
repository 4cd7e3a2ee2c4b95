/*
question = "Where do states, subsets, log-probs or advantages stay the same for long?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many stretches to show"
*/
-- The higher the surprise, the less it is chance: 20 is one in 500 million.
SELECT
    quantity,
    length,
    first_row,
    last_row,
    surprise,
    episode_id,
    timestep,
    agent_id
FROM runs LEFT JOIN digest ON digest.row_id = runs.first_row
ORDER BY surprise DESC, length DESC, first_row, quantity
LIMIT $limit
