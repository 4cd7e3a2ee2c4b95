/*
question = "Does the return grow with the policy version?"
needs = ""
*/
-- Undiscounted, for one agent and episode; an episode of several versions counts for its first.
SELECT
    version_min AS policy_version,
    count(*) AS tracks,
    count(DISTINCT episode_id) AS episodes,
    count(*) FILTER (WHERE version_min < version_max) AS mixed,
    count(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS with_return,
    avg(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_mean,
    stddev_samp(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_stddev,
    min(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_min,
    median(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_median,
    max(reward_sum) FILTER (WHERE isfinite(reward_sum)) AS return_max
FROM episodes
GROUP BY version_min
ORDER BY version_min
