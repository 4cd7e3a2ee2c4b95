/*
question = "What does the dump hold of each agent?"
needs = ""
*/
WITH tracks AS (
    SELECT
        agent_id,
        avg(steps) AS steps_mean,
        min(version_min) AS version_min,
        max(version_max) AS version_max
    FROM episodes
    GROUP BY agent_id
)
SELECT
    agents.agent_id,
    rows,
    rows / sum(rows) OVER () AS share,
    episodes,
    steps_mean,
    version_min,
    version_max,
    reward_mean,
    log_prob_mean
FROM agents LEFT JOIN tracks ON tracks.agent_id IS NOT DISTINCT FROM agents.agent_id
ORDER BY agents.agent_id
