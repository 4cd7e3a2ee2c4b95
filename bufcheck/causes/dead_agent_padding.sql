/*
meaning = "Rows go on for an agent that has left the episode, with zeros or its last values."
when = "first"
rank = 0
evidence = "the row lies behind its agent's end, and its state is zero or that of the row before"
fix = "Drop an agent's rows after its terminated or truncated step, or mask them out of loss and statistics."
*/
WITH behind AS (
    SELECT
        digest.row_id,
        episode_id,
        agent_id,
        state_zero,
        state_zero
        OR state_hash = lag(state_hash) OVER (PARTITION BY episode_id, agent_id ORDER BY timestep, digest.row_id)
            AS padded,
        rule IS NOT NULL AS flagged
    FROM digest
    SEMI JOIN (
        SELECT DISTINCT episode_id, agent_id
        FROM digest JOIN findings USING (row_id)
        WHERE rule = 'row-after-done'
    ) USING (episode_id, agent_id)
    LEFT JOIN (SELECT row_id, rule FROM findings WHERE rule = 'row-after-done') AS found
        ON found.row_id = digest.row_id
),
judged AS (
    SELECT episode_id, agent_id, count(*) AS rows, avg(coalesce(padded, false)::INTEGER) AS share
    FROM behind
    WHERE flagged
    GROUP BY ALL
)
-- A single row may as well be a reset, unless it shows zeros.
SELECT row_id
FROM behind JOIN judged USING (episode_id, agent_id)
WHERE flagged AND share > 0.5 AND (rows > 1 OR state_zero)
