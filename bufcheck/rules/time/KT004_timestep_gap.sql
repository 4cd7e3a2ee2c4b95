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
WITH broken AS (
    SELECT episode_id
    FROM steps
    GROUP BY episode_id
    HAVING max(timestep)::HUGEINT - min(timestep) + 1 > count(*)
),
ordered AS (
    SELECT
        episode_id,
        timestep,
        first_row,
        lag(timestep) OVER (PARTITION BY episode_id ORDER BY timestep) AS before
    FROM steps SEMI JOIN broken USING (episode_id)
)
SELECT first_row AS row_id, episode_id, before, timestep
FROM ordered
WHERE timestep::HUGEINT - before > 1
