/*
question = "Which (episode, step, agent) is stored more than once, and are the copies alike?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
SELECT
    duplicates.episode_id,
    duplicates.timestep,
    duplicates.agent_id,
    any_value(copies) AS copies,
    any_value(first_row) AS first_row,
    max(row_id) AS last_row,
    count(DISTINCT old_log_prob) AS different_log_probs,
    count(DISTINCT reward) AS different_rewards
FROM duplicates JOIN digest USING (episode_id, timestep, agent_id)
GROUP BY ALL
ORDER BY copies DESC, first_row
LIMIT $limit
