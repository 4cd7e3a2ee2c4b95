/*
question = "Which steps does an agent lack between its first and its last?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
WITH holes AS (
    SELECT episode_id, agent_id
    FROM episodes
    WHERE last_step::HUGEINT - first_step + 1 > steps
),
ordered AS (
    SELECT
        episode_id,
        agent_id,
        timestep,
        row_id,
        lag(timestep) OVER (PARTITION BY episode_id, agent_id ORDER BY timestep, row_id) AS before
    FROM digest SEMI JOIN holes USING (episode_id, agent_id)
    WHERE timestep IS NOT NULL
)
SELECT
    episode_id,
    agent_id,
    before + 1 AS first_missing,
    timestep - 1 AS last_missing,
    timestep - before - 1 AS missing,
    row_id AS next_row
FROM ordered
WHERE timestep - before > 1
ORDER BY episode_id, agent_id, first_missing
LIMIT $limit
