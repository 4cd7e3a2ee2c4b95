/*
code = "KT004"
name = "timestep-gap"
severity = "error"
scope = "episode"
needs = ["digest.episode_id", "digest.timestep"]
legal_if = ["cleaned_by_row"]
summary = "A step of an episode is absent for every agent."
why = "Advantages and returns computed across the hole treat two distant states as neighbours."
cause = "Rows were dropped or lost before the dump, a shard is missing, or timesteps are counted in environment frames."
remedy = "Find the missing shard, or cut the episode at the hole."
message = "episode {episode_id} goes from step {before} to step {timestep}"
*/
-- An episode may begin late or end unmarked (a rollout's edge); only a hole inside it is a gap.
-- Where one agent has every step of its episode, as in nearly all, nothing is left to look at.
WITH suspects AS (
    SELECT episode_id
    FROM episodes
    GROUP BY episode_id
    HAVING max(last_step)::HUGEINT - min(first_step) + 1 > max(steps)
    UNION
    SELECT episode_id FROM digest WHERE agent_id IS NULL
),
taken AS (
    SELECT episode_id, timestep, min(row_id) AS first_row
    FROM digest SEMI JOIN suspects USING (episode_id)
    WHERE episode_id IS NOT NULL AND timestep IS NOT NULL
    GROUP BY episode_id, timestep
),
ordered AS (
    SELECT
        episode_id,
        timestep,
        first_row,
        lag(timestep) OVER (PARTITION BY episode_id ORDER BY timestep) AS before
    FROM taken
)
SELECT first_row AS row_id, episode_id, before, timestep
FROM ordered
WHERE timestep::HUGEINT - before > 1
