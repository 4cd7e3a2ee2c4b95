/*
question = "How do episodes end: terminated, truncated, or unmarked?"
needs = ""
*/
-- Few rows are marked, so those are looked up rather than every agent's last one.
WITH marked AS (
    SELECT
        episode_id,
        agent_id,
        timestep,
        coalesce(bool_or(terminated), false) AS is_terminated,
        coalesce(bool_or(truncated), false) AS is_truncated
    FROM digest
    WHERE terminated OR truncated
    GROUP BY episode_id, agent_id, timestep
)
SELECT
    episodes.agent_id,
    count(*) AS episodes,
    count(*) FILTER (WHERE is_terminated AND NOT is_truncated) AS ended_terminated,
    count(*) FILTER (WHERE is_truncated AND NOT is_terminated) AS ended_truncated,
    count(*) FILTER (WHERE is_terminated AND is_truncated) AS ended_both,
    count(*) FILTER (WHERE is_terminated IS NULL) AS ended_unmarked,
    count(*) FILTER (WHERE first_done < last_step) AS marked_early
FROM episodes
LEFT JOIN marked
    ON marked.episode_id = episodes.episode_id
    AND marked.agent_id = episodes.agent_id
    AND marked.timestep = episodes.last_step
GROUP BY episodes.agent_id
ORDER BY episodes.agent_id
