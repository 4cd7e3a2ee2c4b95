/*
question = "Which episodes are the longest?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
SELECT
    episode_id,
    max(steps)::BIGINT AS length,
    count(*) AS agents,
    sum(rows)::BIGINT AS rows,
    min(first_step) AS first_step,
    max(last_step) AS last_step,
    sum(reward_sum) AS reward_sum,
    min(first_row) AS first_row
FROM episodes
GROUP BY episode_id
ORDER BY length DESC, episode_id
LIMIT $limit
