/*
meaning = "one row per (episode, timestep): what its agents have in common"
[columns]
rows = "rows of the step"
first_row = "the first of them"
agent_min = "smallest agent id"
agent_max = "largest agent id: the same as the smallest where one agent acted"
state_shared = "all rows have the same state"
subset_shared = "all rows have the same subset"
log_prob_shared = "at least two rows had a choice, their contexts differ, and their log-probs are equal"
advantage_shared = "all rows have the same advantage, and it is not 0"
*/
SELECT
    episode_id,
    timestep,
    count(*) AS rows,
    min(row_id) AS first_row,
    min(agent_id) AS agent_min,
    max(agent_id) AS agent_max,
    min(state_hash) = max(state_hash) AS state_shared,
    min(subset_hash) = max(subset_hash) AS subset_shared,
    min(old_log_prob) FILTER (WHERE legal_actions IS DISTINCT FROM 1)
    = max(old_log_prob) FILTER (WHERE legal_actions IS DISTINCT FROM 1)
    AND count(*) FILTER (WHERE legal_actions IS DISTINCT FROM 1) > 1
    AND NOT (
        min(state_hash) = max(state_hash)
        AND coalesce(min(subset_hash) = max(subset_hash), true)
        AND coalesce(min(action_index) = max(action_index), true)
        AND coalesce(min(action_hash) = max(action_hash), true)
    ) AS log_prob_shared,
    min(advantage) = max(advantage) AND min(advantage) <> 0 AS advantage_shared
FROM digest
WHERE episode_id IS NOT NULL AND timestep IS NOT NULL
GROUP BY episode_id, timestep
