/*
question = "Which rows did a bug make, and where did their log-probs come from?"
needs = ""
[parameters]
cause = ""
limit = 20
[help]
cause = "name of the cause, as the report tells it; empty for every cause"
limit = "how many rows to show"
*/
WITH keys AS (SELECT row_id, episode_id, timestep, agent_id, old_log_prob FROM digest)
SELECT
    causes.row_id,
    stored.episode_id,
    stored.timestep,
    stored.agent_id,
    stored.old_log_prob,
    cause,
    confidence,
    source_row_id,
    origin.episode_id AS source_episode_id,
    origin.timestep AS source_timestep,
    origin.agent_id AS source_agent_id
FROM causes
LEFT JOIN keys AS stored ON stored.row_id = causes.row_id
LEFT JOIN keys AS origin ON origin.row_id = source_row_id
WHERE $cause = '' OR cause = replace(lower($cause), '_', '-')
ORDER BY causes.row_id, cause, confidence, source_row_id
LIMIT $limit
