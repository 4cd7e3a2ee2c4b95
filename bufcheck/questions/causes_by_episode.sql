/*
question = "Which bug hit which episode, and how many of its rows?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
WITH hit AS (
    SELECT
        cause,
        confidence,
        episode_id,
        count(*) AS rows,
        count(DISTINCT agent_id) AS agents,
        min(timestep) AS first_step,
        max(timestep) AS last_step
    FROM causes JOIN digest USING (row_id)
    GROUP BY cause, confidence, episode_id
),
sizes AS (SELECT episode_id, count(*) AS episode_rows FROM digest GROUP BY episode_id)
SELECT
    cause,
    confidence,
    hit.episode_id,
    rows,
    rows / episode_rows AS episode_share,
    agents,
    first_step,
    last_step
FROM hit LEFT JOIN sizes ON sizes.episode_id IS NOT DISTINCT FROM hit.episode_id
ORDER BY cause, confidence, rows DESC, hit.episode_id
LIMIT $limit
