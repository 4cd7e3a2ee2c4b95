/*
meaning = "the rest of the episode, for all of its agents, from its first bad step on"
cuts = true
*/
-- A row without a timestep has no place before the cut.
WITH cuts AS (
    SELECT episode_id, min(timestep) AS first_bad FROM holes GROUP BY episode_id
)
SELECT row_id FROM bad
UNION
SELECT row_id
FROM digest JOIN cuts USING (episode_id)
WHERE coalesce(timestep >= first_bad, true)
