/*
code = "KT001"
name = "duplicate-key"
severity = "error"
scope = "dump"
removes = true
needs = ["digest.episode_id", "digest.timestep", "digest.agent_id"]
on_demand = "duplicates"
summary = "Several rows have the same (episode_id, timestep, agent_id)."
why = "A sample stored twice counts twice; two different samples under one key mean that at least one is misfiled."
cause = "A rollout appended again after a resume, overlapping shards, or workers that count episodes from the same number."
remedy = "Give every worker its own range of episode ids, and append a rollout once."
message = "{copies} rows have this key, and they {relation}; the first is row {first_row}"
*/
-- Copies that agree in every schema column: all after the first are flagged. Copies that contradict
-- each other: all of them, because nothing says which is right. NaN equals NaN here.
WITH copied AS (
    SELECT
        row_id,
        episode_id,
        timestep,
        agent_id,
        copies,
        first_row,
        hash(
            state_hash, subset_hash, mask_hash, logits_hash, action_hash, action_mean_hash,
            action_std_hash, num_actions, action_index, old_log_prob, action_id, policy_version,
            reward, value, advantage, "return", terminated, truncated, bootstrap_value, new_log_prob,
            entropy, valid, env_id, seed, source, "group"
        ) AS content
    FROM digest JOIN duplicates USING (episode_id, timestep, agent_id)
),
contents AS (
    SELECT episode_id, timestep, agent_id, min(content) = max(content) AS identical
    FROM copied
    GROUP BY ALL
)
SELECT
    row_id,
    copies,
    first_row,
    CASE WHEN identical THEN 'are identical' ELSE 'contradict each other' END AS relation
FROM copied JOIN contents USING (episode_id, timestep, agent_id)
WHERE NOT identical OR row_id <> first_row
