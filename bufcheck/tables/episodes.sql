/*
meaning = "one row per (episode, agent)"
reads = { state_constant = "state_hash" }
keys = ["episode_id", "agent_id"]
[columns]
rows = "stored rows"
steps = "distinct timesteps among them"
first_row = "the first of them"
first_step = "smallest timestep"
last_step = "largest timestep"
first_done = "smallest timestep marked terminated or truncated"
ending = "terminated, truncated, both, or unmarked"
reward_sum = "undiscounted return"
version_min = "smallest policy_version"
version_max = "largest policy_version"
state_constant = "every row has the same state"
advantage_constant = "every row has the same advantage"
*/
WITH surplus AS (
    SELECT episode_id, agent_id, sum(copies - 1) AS copies FROM duplicates GROUP BY ALL
),
grouped AS (
    SELECT
        episode_id,
        agent_id,
        count(*) AS rows,
        min(row_id) AS first_row,
        min(timestep) AS first_step,
        max(timestep) AS last_step,
        min(timestep) FILTER (WHERE terminated OR truncated) AS first_done,
        CASE
            WHEN bool_or(terminated) AND bool_or(truncated) THEN 'both'
            WHEN bool_or(terminated) THEN 'terminated'
            WHEN bool_or(truncated) THEN 'truncated'
            ELSE 'unmarked'
        END AS ending,
        sum(reward) AS reward_sum,
        min(policy_version) AS version_min,
        max(policy_version) AS version_max,
        min(state_hash) = max(state_hash) AND count(state_hash) = count(*) AS state_constant,
        min(advantage) = max(advantage) AS advantage_constant
    FROM digest
    WHERE episode_id IS NOT NULL AND timestep IS NOT NULL AND agent_id IS NOT NULL
    GROUP BY episode_id, agent_id
)
SELECT
    episode_id, agent_id, grouped.rows, first_row, first_step, last_step, first_done, ending, reward_sum,
    version_min, version_max, state_constant, advantage_constant,
    (grouped.rows - coalesce(surplus.copies, 0))::BIGINT AS steps
FROM grouped LEFT JOIN surplus USING (episode_id, agent_id)
