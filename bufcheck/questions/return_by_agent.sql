/*
question = "What return does each agent get from an episode?"
needs = ""
*/
-- Undiscounted, over the rows that are stored.
SELECT
    agent_id,
    count(*) AS episodes,
    count(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS with_return,
    avg(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_mean,
    stddev_samp(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_stddev,
    min(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_min,
    median(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_median,
    max(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_max
FROM episodes
GROUP BY agent_id
ORDER BY agent_id
