/*
question = "How long are the episodes?"
needs = ""
*/
-- An episode is as long as the agent with the most steps in it.
WITH lengths AS (
    SELECT episode_id, max(steps)::BIGINT AS length, min(steps) < max(steps) AS uneven
    FROM episodes
    GROUP BY episode_id
)
SELECT
    length,
    count(*) AS episodes,
    count(*) / sum(count(*)) OVER () AS share,
    count(*) FILTER (WHERE uneven) AS agents_differ,
    min(episode_id) AS first_episode
FROM lengths
GROUP BY length
ORDER BY length
