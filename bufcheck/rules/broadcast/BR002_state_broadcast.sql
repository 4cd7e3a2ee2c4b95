/*
code = "BR002"
name = "state-broadcast"
severity = "warning"
scope = "dump"
needs = ["digest.state_hash", "digest.episode_id", "digest.timestep", "digest.agent_id"]
legal_if = ["agents_shared_state"]
summary = "The same state stands at all agents of a step, in a block of rows, or throughout an episode, more often than chance gives."
why = "The actor acted on one observation and is trained on another."
cause = "One agent's observation broadcast to all, or a reference to an array that is overwritten in place, so that every row shows its last content."
remedy = "Copy the observation when it is stored (obs.copy(), tensor.clone()). If agents share it, declare agents.shared_state."
message = "{what}"
[parameters]
surprise = 13.8
least_rows = 8
*/
SELECT row_id, string_agg(DISTINCT what, '; ' ORDER BY what) AS what
FROM (
    SELECT row_id, 'all ' || agents || ' agents of the step have this state' AS what
    FROM (
        SELECT
            row_id,
            count(DISTINCT agent_id) OVER step + count(*) OVER step - count(agent_id) OVER step AS agents
        FROM digest
        SEMI JOIN (
            SELECT episode_id, timestep
            FROM digest
            WHERE (SELECT surprise FROM sharing WHERE quantity = 'state') > $surprise
            GROUP BY episode_id, timestep
            HAVING min(state_hash) = max(state_hash) AND count(state_hash) = count(*)
        ) USING (episode_id, timestep)
        WINDOW step AS (PARTITION BY episode_id, timestep)
    )
    WHERE agents > 1
    UNION ALL
    SELECT
        unnest(generate_series(first_row, last_row)) AS row_id,
        'rows ' || first_row || ' to ' || last_row || ' have the same state' AS what
    FROM runs
    WHERE quantity = 'state' AND length >= $least_rows AND surprise > $surprise
    UNION ALL
    SELECT digest.row_id, 'the state never changes in the ' || episodes.rows || ' rows of the episode' AS what
    FROM digest JOIN episodes USING (episode_id, agent_id)
    WHERE state_constant AND steps >= $least_rows
        AND (SELECT min(state_hash) <> max(state_hash) FROM digest)
)
GROUP BY row_id
