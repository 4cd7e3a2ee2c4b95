/*
question = "Which policy versions acted in an episode, and from which step to which?"
needs = ""
[parameters]
limit = 20
[help]
limit = "how many rows to show"
*/
-- Episodes of several versions come first.
SELECT
    episode_id,
    count(*) OVER (PARTITION BY episode_id) AS versions,
    policy_version,
    count(*) AS rows,
    count(DISTINCT agent_id) AS agents,
    min(timestep) AS first_step,
    max(timestep) AS last_step
FROM digest
GROUP BY episode_id, policy_version
ORDER BY versions DESC, episode_id, policy_version
LIMIT $limit
