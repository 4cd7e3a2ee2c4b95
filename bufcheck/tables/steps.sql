/*
meaning = "one row per (episode, timestep)"
keys = ["episode_id", "timestep"]
[columns]
rows = "rows of the step"
agents = "different agents among them"
first_row = "the first of them"
*/
WITH grouped AS (
    SELECT episode_id, timestep, count(*) AS rows, min(row_id) AS first_row
    FROM digest
    WHERE episode_id IS NOT NULL AND timestep IS NOT NULL
    GROUP BY episode_id, timestep
),
copied AS (
    SELECT episode_id, timestep, sum(copies - 1) AS copies FROM duplicates GROUP BY ALL
)
SELECT episode_id, timestep, rows, (rows - coalesce(copies, 0))::BIGINT AS agents, first_row
FROM grouped LEFT JOIN copied USING (episode_id, timestep)
