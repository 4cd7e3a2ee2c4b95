/*
question = "Which states are stored more than once?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many states to show"
*/
WITH repeated AS (
    SELECT state_hash
    FROM digest
    WHERE state_hash IS NOT NULL
    GROUP BY state_hash
    HAVING count(*) > 1
)
SELECT
    count(*) AS rows,
    count(DISTINCT episode_id) AS episodes,
    count(DISTINCT agent_id) AS agents,
    bool_or(state_zero) AS all_zeros,
    count(DISTINCT old_log_prob) AS different_log_probs,
    min(row_id) AS first_row,
    max(row_id) AS last_row,
    arg_min(episode_id, row_id) AS first_episode,
    arg_min(timestep, row_id) AS first_timestep,
    arg_min(agent_id, row_id) AS first_agent
FROM digest SEMI JOIN repeated USING (state_hash)
GROUP BY state_hash
ORDER BY rows DESC, first_row
LIMIT $limit
