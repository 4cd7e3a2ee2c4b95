/*
meaning = "one row per agent"
keys = ["agent_id"]
[columns]
rows = "stored rows"
episodes = "episodes it has rows in"
reward_mean = "mean reward"
log_prob_mean = "mean old_log_prob"
*/
SELECT
    agent_id,
    count(*) AS rows,
    count(DISTINCT episode_id) AS episodes,
    avg(reward) AS reward_mean,
    avg(old_log_prob) AS log_prob_mean
FROM digest
GROUP BY agent_id
