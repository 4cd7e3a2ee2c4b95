/*
question = "At which steps of an episode is the reward earned?"
needs = ""
*/
SELECT
    timestep,
    count(*) AS rows,
    count(DISTINCT episode_id) AS episodes,
    avg(reward) FILTER (WHERE isfinite(reward)) AS reward_mean,
    stddev_samp(reward) FILTER (WHERE isfinite(reward)) AS reward_stddev,
    min(reward) AS reward_min,
    max(reward) AS reward_max,
    count(*) FILTER (WHERE reward = 0) AS zeros
FROM digest
GROUP BY timestep
ORDER BY timestep
